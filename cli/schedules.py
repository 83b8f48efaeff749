"""``ems schedules``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from emsworker.console.completing import complete_topics
from emsworker.console.dialogue import confirm, say_more
from emsworker.console.options import common_options, duration_option, stream_options, together, yes_option
from emsworker.console.output import print_done, print_record, print_rows
from emsworker.console.streams import open_stream

if TYPE_CHECKING:
    from emsworker.core.schedule import ScheduleRow

PAGE = click.IntRange(1, 10_000)


@click.group()
@stream_options
def schedules() -> None:
    """List the schedules of periodic tasks; add, change, pause and delete those that are made at run time.

    A worker writes the schedules of its app's code into the stream when it starts; these can be paused. Others are
    added here, on the dashboard or by `app.schedules`. The beat fires all of them from there.
    """


@schedules.command("list")
@click.option("--prefix", default="", help="Only those whose names begin with it.")
@click.option("--tag", help="Only those whose calls have this tag.")
@click.option("--after", default="", metavar="NAME", help="Begin after this name.")
@click.option(
    "--limit", type=PAGE, default=1000, show_default=True, help="Maximum number, of each server; a note tells of more."
)
@common_options
def list_(prefix: str, tag: str | None, after: str, limit: int, as_json: bool) -> None:
    """List the schedules by name, with their next and last slots; times are UTC.

    ORIGIN is code for those that an app declares, and user for those that were added at run time.
    """
    page = open_stream().looking().schedules.page(prefix=prefix, tag=tag, after=after, limit=limit)
    if page.after is not None:
        say_more(len(page.rows), None, "schedule", f"that are first by name; --after {page.after} continues")
    rows = [asdict(row) for row in page.rows]
    columns = ["name", "task", "spec", "timezone", "catch_up", "topic", "tag", "origin", "paused", "next_at", "last_at"]
    spare = ["catch_up", "tag", "timezone", "last_at", "origin", "task", "topic"]
    print_rows(rows, columns, as_json, "There are no schedules.", spare=spare)


_times = together(
    click.option("--cron", help="Five fields, or six with the seconds first."),
    duration_option("--every", help="Instead of --cron: the interval"),
)
_ARGS_HELP = "Arguments of its calls by position, a JSON array."
_KWARGS_HELP = "Arguments of its calls by name, a JSON object."


@schedules.command()
@click.argument("name")
@click.argument("task")
@_times
@click.option("--timezone", default="UTC", show_default=True, help="Of --cron, like Europe/Berlin.")
@click.option("--catch-up", default="last", show_default=True, help="Of missed slots: last, all or none.")
@click.option("--args", "args_", default="[]", help=_ARGS_HELP)
@click.option("--kwargs", "kwargs_", default="{}", help=_KWARGS_HELP)
@click.option("--topic", help="Of the task, if it is run on several.", shell_complete=complete_topics)
@click.option("--key", help="Of its calls: those with the same key share a partition.")
@click.option("--tag", help="Of its calls; the list can be narrowed to one.")
@click.option("--priority", type=click.IntRange(0, 9), help="Of its calls, if the topic distinguishes priorities.")
@duration_option("--expires", help="How long after its slot a call is still run")
@common_options
def add(
    name: str,
    task: str,
    cron: str | None,
    every: float | None,
    args_: str,
    kwargs_: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Add the schedule NAME, which calls TASK; the one of that name is replaced.

    Some worker must have started with the task. With unchanged times a schedule keeps its next slot.
    """
    args, kwargs = _read("--args", args_, list), _read("--kwargs", kwargs_, dict)
    with open_stream().changing("add schedule", name) as admin:
        row = admin.schedules.add(name, task, cron, every=every, args=args, kwargs=kwargs, **options)
    _print(row, as_json)


@schedules.command()
@click.argument("name")
@_times
@click.option("--timezone", help="Of --cron, like Europe/Berlin.")
@click.option("--catch-up", help="Of missed slots: last, all or none.")
@click.option("--args", "args_", help=f"{_ARGS_HELP} With it, --kwargs is new, too.")
@click.option("--kwargs", "kwargs_", help=f"{_KWARGS_HELP} With it, --args is new, too.")
@common_options
def change(name: str, args_: str | None, kwargs_: str | None, as_json: bool, **times: Any) -> None:
    """Change the schedule NAME from its next slot on; what is not given stays.

    One that an app declares is changed in its code.
    """
    args = None if args_ is None else _read("--args", args_, list)
    kwargs = None if kwargs_ is None else _read("--kwargs", kwargs_, dict)
    if args is kwargs is None and not any(value is not None for value in times.values()):
        raise click.UsageError("Nothing to change; name at least one setting.")
    with open_stream().changing("change schedule", name) as admin:
        row = admin.schedules.change(name, args=args, kwargs=kwargs, **times)
    _print(row, as_json)


@schedules.command()
@click.argument("name")
@common_options
def pause(name: str, as_json: bool) -> None:
    """Pause the schedule NAME: it is not fired until it is resumed, also if an app declares it."""
    with open_stream().changing("pause schedule", name) as admin:
        row = admin.schedules.pause(name)
    _print(row, as_json)


@schedules.command()
@click.argument("name")
@common_options
def resume(name: str, as_json: bool) -> None:
    """Resume the schedule NAME from its next slot on; those that passed meanwhile are left out."""
    with open_stream().changing("resume schedule", name) as admin:
        row = admin.schedules.resume(name)
    _print(row, as_json)


@schedules.command()
@click.argument("name")
@yes_option
@common_options
def delete(name: str, yes: bool, as_json: bool) -> None:
    """Delete the schedule NAME. A worker whose app still declares it writes it anew when it starts."""
    confirm(f"Delete the schedule {name}?", yes)
    with open_stream().changing("delete schedule", name) as admin:
        admin.schedules.delete(name)
    print_done({"deleted": name}, f"Deleted the schedule {name}.", as_json)


def _read(option: str, text: str, kind: type) -> Any:
    """Return the value of an option in JSON.

    Raises:
        click.BadParameter: it is not JSON of this kind.
    """
    import json

    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"{text[:100]!r} is not JSON: {error}.", param_hint=option) from None
    if not isinstance(value, kind):
        shape = "an array, like [17]" if kind is list else 'an object, like {"id": 17}'
        raise click.BadParameter(f"{text[:100]!r} must be {shape}.", param_hint=option)
    return value


def _print(row: ScheduleRow, as_json: bool) -> None:
    print_record(asdict(row), as_json)
