"""``ems pipeline``: the jobs of :mod:`emsworker.spark.jobs` as commands; each option of a job becomes an option."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import click

from emsworker.extending.console import (
    TRACEBACK,
    URL,
    draws_tables,
    json_option,
    print_rows,
    stream_options,
    wide_option,
)
from emsworker.extending.declaration import hint_if_missing
from emsworker.extending.errors import ExtraMissing
from emsworker.extending.processes import claim_role
from emsworker.extending.values import counted
from emsworker.spark.jobs import JOBS, load
from emsworker.spark.jobs.job import Job, JobResult, Options, Shape
from emsworker.spark.jobs.output import FORMATS, as_text, write
from emsworker.spark.jobs.output import as_json as report_json
from emsworker.spark.jobs.report import JobReport, plain, shown
from emsworker.spark.jobs.session import DEFAULT_MASTER, open_session

EPILOG = (
    "The stream is where EMS_URL or --profile points; on a cluster, on every node. Exit code 0: done; 1: it failed; "
    "2: it was asked for wrongly. Progress goes to stderr."
)

LARGE = 1_000_000
"""Rows above which a report uses Spark if it is installed."""

_OF_EVERY_JOB = (
    click.option(
        "--spark/--no-spark",
        "wanted",
        default=None,
        help="Use Spark, or do without it; by default a short report that reads little is made without.",
    ),
    click.option(
        "--master",
        metavar="MASTER",
        help=f"Where Spark runs; by default {DEFAULT_MASTER}, or what spark-submit was given.",
    ),
    click.option("--conf", metavar="NAME=VALUE", multiple=True, help="A setting of Spark; may be repeated."),
    click.option("--format", type=click.Choice(FORMATS), default="table", show_default=True, help="Of the report."),
    click.option("--output", metavar="PATH", help="The report's file or folder; without it the terminal."),
    json_option,
    wide_option,
    click.option("--quiet", is_flag=True, help="No progress on stderr."),
    stream_options,
)


class Pipeline(click.Group):
    """A group with a command for each job; a job's module is imported when its command is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the jobs in the order of their table."""
        return list(JOBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Make the command of a job; ``None`` if there is no such job."""
        return command_of(load(cmd_name), JOBS[cmd_name][1]) if cmd_name in JOBS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of jobs from the table, without importing their modules."""
        with formatter.section("Jobs"):
            formatter.write_dl([(name, text) for name, (_, text) in JOBS.items()])


@click.command(cls=Pipeline, epilog=EPILOG)
@stream_options
def pipeline() -> None:
    """Run a job of the data pipeline: reports, archive, restore and others.

    The reports lag, topics, latency, flows, trace and deadletters are made in this process while they read little.
    Every other job runs on Spark: on this machine by default, and on a cluster by --master or spark-submit.
    """


def command_of(job: Job[Any], help: str) -> click.Command:
    command = click.Command(
        job.name, callback=partial(run_job, job), params=_params(job.options), help=help, epilog=EPILOG
    )
    for option in _OF_EVERY_JOB:
        command = option(command)
    return command


def _params(options: type[Options]) -> list[click.Parameter]:
    hints = get_type_hints(options)
    fields = [field for field in dataclasses.fields(options) if "shape" in field.metadata]
    own = {field.name for field in dataclasses.fields(Options)}
    fields.sort(key=lambda field: field.name in own)  # the job's own options come first
    return [_param(field, hints[field.name]) for field in fields]


def _param(field: dataclasses.Field[Any], hint: Any) -> click.Option:
    shape: Shape = field.metadata["shape"]
    required = field.default is dataclasses.MISSING
    names = [f"--{field.name.replace('_', '-')}", field.name]
    if hint is bool:
        return click.Option(names, is_flag=True, default=bool(field.default), help=shape.help)
    many = get_origin(hint) is tuple
    kinds = [kind for kind in (get_args(hint) or (hint,)) if kind not in (type(None), Ellipsis)]
    kind: Any = kinds[0] if kinds and kinds[0] in (int, float) else str
    if shape.choices:
        kind = click.Choice(shape.choices)
    # A default of None would satisfy click 8.3 where the option is required.
    default: dict[str, Any] = {} if required or many else {"default": field.default}
    return click.Option(
        names,
        type=kind if shape.read is None else str,
        multiple=many,
        required=required,
        **default,
        metavar=shape.metavar,
        help=shape.help,
        show_default=not required and not many and field.default is not None,
        callback=None if shape.read is None else _reading(shape.read),
    )


def _reading(read: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        try:
            if isinstance(value, tuple):
                return tuple(read(one) for one in value)
            return read(value) if isinstance(value, str) else value
        except ValueError as error:
            raise click.BadParameter(f"{value!r}: {error}.") from None

    return callback


def run_job(
    job: Job[Any],
    /,  # a job may have an option of this name
    *,
    wanted: bool | None,
    master: str | None,
    conf: tuple[str, ...],
    format: str,
    output: str | None,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Run a job with the values of the command line, and print its result."""
    claim_role(job.role)
    context = click.get_current_context()
    if URL in context.meta:
        raise click.UsageError("--url would not reach Spark's executors; set EMS_URL, or name a --profile.")
    settings = _settings(conf)
    if wanted is False and (master is not None or settings):
        raise click.UsageError("--master and --conf are for Spark; leave them out, or --no-spark.")
    if wanted is False and job.size is None:
        raise click.UsageError(f"{job.name} runs on Spark only; leave out --no-spark.")
    if output is None and format in ("csv", "parquet", "html"):
        raise click.UsageError(f"--format {format} makes files; say where with --output.")
    if not quiet:
        given["progress"] = lambda line: click.echo(line, err=True)
    config = job.options(**given)
    started, clock = datetime.now(UTC), time.monotonic()
    uses_spark = _uses_spark(job, config, True if master is not None or settings else wanted)
    if uses_spark:
        java_log = context.meta.get(TRACEBACK, False)
        with open_session(f"ems-{job.name}", master, settings, java_log=java_log) as spark:
            result = job.run(spark, config)
    else:
        result = job.run(None, config)
    summary = {
        "job": job.name,
        "started_at": started.isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - clock, 1),
        **({} if job.size is None or config.dry_run else {"engine": "spark" if uses_spark else "polars"}),
        "dry_run": config.dry_run,
        **plain(result.summary),
    }
    _show(result, summary, format, None if output is None else Path(output), as_json)
    if result.failure is not None:
        click.echo(f"Error: {result.failure}", err=True)
        context.exit(1)


def _uses_spark(job: Job[Any], config: Options, wanted: bool | None) -> bool:
    """Choose the engine of a job: Spark if it is wanted, needed, or the work is large.

    Raises:
        ExtraMissing: neither Polars nor PySpark is installed.
    """
    if job.size is None or wanted is not None or not job.needs_spark(config):
        return job.needs_spark(config) and wanted is not False
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # under spark-submit
        return True
    spark_missing = hint_if_missing("spark")
    if polars_missing := hint_if_missing("polars"):
        if spark_missing:
            raise ExtraMissing(
                f"{job.name} needs the extra polars: {polars_missing}, or for large streams pip install "
                "'emsworker[spark]'"
            )
        return True
    rows = job.size(config)
    if rows <= LARGE:
        return False
    if spark_missing:
        config.progress(
            f"reading {counted(rows, 'row')} without Spark; pip install 'emsworker[spark]' uses all processors"
        )
    return not spark_missing


def _settings(given: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{one!r} must be NAME=VALUE.", param_hint="--conf")
        settings[name] = value
    return settings


def _show(result: JobResult, summary: Mapping[str, Any], format: str, output: Path | None, as_lines: bool) -> None:
    report = result.report
    if report is not None and output is not None:
        paths = write(report, format, output, summary)
        summary = {**summary, "written": [str(path) for path in paths]}
    elif report is not None and format == "json":
        click.echo(report_json(report, summary))
        return
    if as_lines:
        click.echo(json.dumps(summary, indent=2, ensure_ascii=False))
        return
    if report is not None and output is None:
        _print_report(report)
    width = max(map(len, summary))
    for name, value in summary.items():
        click.echo(f"{name.replace('_', ' ').ljust(width)}  {shown(value)}".rstrip())


def _print_report(report: JobReport) -> None:
    if not draws_tables():
        click.echo(as_text(report) + "\n")
        return
    for table in report.tables:
        click.echo(table.title)
        rows = [dict(zip(table.columns, map(_for_a_table, row), strict=True)) for row in table.rows]
        print_rows(rows, table.columns, False, "(nothing)")
        click.echo()


def _for_a_table(value: Any) -> Any:
    """Return a value that tables format as they do those of other commands."""
    if isinstance(value, float):
        return round(value, 3)
    return value if value is None or isinstance(value, int | datetime) else shown(value)
