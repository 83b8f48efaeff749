"""``ems schedules``."""

from __future__ import annotations

from dataclasses import asdict

import click

from emsworker.console.dialogue import delete_named, first_of
from emsworker.console.options import common_options, most_option, stream_options, yes_option
from emsworker.console.output import print_rows
from emsworker.console.streams import open_stream


@click.group()
@stream_options
def schedules() -> None:
    """List the schedules of periodic tasks; delete those that no app declares any more.

    A worker writes the schedules of its app into the stream when it starts, and the beat fires them from there.
    """


@schedules.command("list")
@most_option
@common_options
def list_(limit: int, as_json: bool) -> None:
    """List the schedules with their next and last slots; times are UTC."""
    found = first_of(open_stream().looking().schedules.list(), limit, "schedule", "that are first by name")
    rows = [asdict(row) for row in found]
    columns = ["name", "spec", "timezone", "catch_up", "topic", "next_at", "last_at"]
    print_rows(rows, columns, as_json, "There are no schedules.", spare=["catch_up", "timezone", "last_at"])


@schedules.command()
@click.argument("name")
@yes_option
@common_options
def delete(name: str, yes: bool, as_json: bool) -> None:
    """Delete the schedule NAME. A worker whose app still declares it writes it anew when it starts."""
    delete_named("schedule", name, open_stream().admin().schedules.delete, yes, as_json)
