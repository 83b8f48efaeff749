"""Report of the lag of groups over time, their rates, and the time until they catch up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from emsworker.arrow.columns import parse_columns
from emsworker.extending.administration import GroupLag
from emsworker.spark.jobs.job import Job, JobResult, WrongOption, option
from emsworker.spark.jobs.reading import Reading, ReportScope, count_messages, needs_spark, read_span
from emsworker.spark.jobs.report import Chart, JobReport, Table
from emsworker.spark.jobs.reports import open_engine
from emsworker.spark.jobs.reports.engine import LAG, Row

_MOST_STEPS = 10_000
_COLUMNS = LAG | parse_columns("born_per_s double, ended_per_s double, drain_s double")
_NOW = parse_columns(
    "topic string, group string, lag bigint, unclaimed bigint, claimed bigint, waiting bigint, retries bigint, "
    "dead bigint, oldest_s double"
)


@dataclass(frozen=True, kw_only=True)
class LagOptions(Reading):
    """Options of ``ems pipeline lag``."""

    every: float = option(60.0, help="One line for each span of this length.", metavar="SPAN", read=read_span)


def run(spark: Any, config: LagOptions) -> JobResult:
    """Run ``ems pipeline lag``; without a session in this process."""
    scope = ReportScope(config)
    lags = scope.lags()
    summary: dict[str, Any] = {"groups": len(lags), "lag_now": sum(lag.lag for lag in lags)}
    if config.dry_run:
        return JobResult(summary | {"every_s": config.every})
    rows = open_engine(spark, scope).lag(config.every, partial(_check_steps, config.every))
    table = Table.of(
        "lag", f"Lag, every {config.every:g} s", _COLUMNS, (_with_rates(row, config.every) for row in rows)
    )
    records = table.records()
    peak = max(records, key=lambda row: row["lag"], default=None)
    if peak is not None:
        summary |= {"peak": peak["lag"], "peak_at": peak["at"], "peak_group": f"{peak['topic']}/{peak['group']}"}
    return JobResult(summary, JobReport("Lag", [_now(lags), table], _charts(records)))


def _with_rates(row: Row, every_s: float) -> Row:
    """Add births and ends per second, and the seconds until the lag has drained if both rates stay (None: never)."""
    *_, born, ended, lag = row
    drain = 0.0 if lag == 0 else lag / (ended - born) * every_s if ended > born else None
    return *row, born / every_s, ended / every_s, drain


def _check_steps(every_s: float, seconds: float) -> None:
    """Raise WrongOption if the spans are too short for the seconds that the stream covers."""
    if seconds / every_s > _MOST_STEPS:
        fix = f"the stream covers {seconds:.0f} s, which would be more than {_MOST_STEPS} lines for a group; "
        raise WrongOption("--every", f"{every_s:g}", f"{fix}take {seconds / _MOST_STEPS:.0f}s or more")


def _now(lags: list[GroupLag]) -> Table:
    rows = [
        (one.topic.name, one.group.name, one.lag, one.unclaimed, one.claimed, one.waiting, one.retries, one.dead, age)
        for one, age in ((lag, lag.oldest_age_s) for lag in lags)
    ]
    return Table.of("now", "Now", _NOW, rows)


def _charts(records: list[dict[str, Any]]) -> list[Chart]:
    times = sorted({row["at"] for row in records})
    series: dict[str, dict[Any, int]] = {}
    for row in records:
        series.setdefault(f"{row['topic']} / {row['group']}", {})[row["at"]] = row["lag"]
    if not series:
        return []
    # Spans shorter than a second would get equal labels.
    digits = None if all(time.microsecond == 0 for time in times) else -5
    labels = [time.strftime("%m-%d %H:%M:%S.%f")[: digits or -7] for time in times]
    lines = {name: [values.get(time) for time in times] for name, values in series.items()}
    return [Chart("Lag, messages", "line", labels, lines)]


JOB = Job("lag", LagOptions, run, needs_spark, count_messages)
