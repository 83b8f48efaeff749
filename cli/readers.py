"""``ems readers``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from emsworker.admin.readers import Readers
from emsworker.console.completing import complete_topics
from emsworker.console.dialogue import confirm, first_of
from emsworker.console.options import common_options, duration_option, most_option, stream_options, yes_option
from emsworker.console.output import print_record, print_rows
from emsworker.console.streams import open_stream

_COLUMNS = ["topic", "reader", "kind", "partition", "next_offset", "lag", "state", "age_s", "held_from", "expires_at"]


@click.group()
@stream_options
def readers() -> None:
    """List the readers that belong to no group; release their holds, delete their positions.

    Readers of broadcast topics are kept if they have a stable name; the others begin at the end of the topic when they
    start. Streaming queries hold messages if they have a holdName.
    """


@readers.command("list")
@click.argument("topic", required=False, shell_complete=complete_topics)
@most_option
@common_options
def list_(topic: str | None, limit: int, as_json: bool) -> None:
    """List the readers of TOPIC, or of all topics, with their next offsets; times are UTC.

    The state of a broadcast reader is open from its start to its end, also when its process was killed. A hold is held
    until it is not renewed in time; then it is lost, and retention goes on. AGE_S is the time since it was written.
    """
    rows = [*_rows(open_stream().looking().readers, topic)]
    rows = first_of(rows, limit, "reader's partition", "that are first by topic and name, broadcasts before holds")
    print_rows(rows, _COLUMNS, as_json, "There are no readers.", spare=["age_s", "held_from"])


def _rows(readers: Readers, topic: str | None) -> Iterator[dict[str, Any]]:
    for row in readers.list(topic):
        yield {
            "topic": row.topic, "reader": row.reader, "kind": "broadcast", "partition": row.partition,
            "next_offset": row.next_offset, "lag": row.lag, "state": "open" if row.open else "closed",
            "age_s": round(row.age_s, 1), "held_from": None, "expires_at": None,
        }  # fmt: skip
    for hold in (row for view in readers.holds(topic) for row in view.rows):
        yield {
            "topic": hold.topic, "reader": hold.name, "kind": "hold", "partition": hold.partition,
            "next_offset": hold.next_offset, "lag": hold.lag, "state": "lost" if hold.lost_at else "held",
            "age_s": round(hold.age_s, 1), "held_from": hold.held_from, "expires_at": hold.expires_at,
        }  # fmt: skip


@readers.command()
@click.argument("topic", shell_complete=complete_topics)
@click.argument("reader")
@yes_option
@common_options
def release(topic: str, reader: str, yes: bool, as_json: bool) -> None:
    """Delete the hold of READER on TOPIC, so that retention goes on; a query that still runs takes it again."""
    admin = open_stream().admin()
    confirm(f"Release the hold of {reader!r}? Messages of topic {topic!r} that it has not read may be deleted.", yes)
    count = admin.readers.release(topic, reader)
    print_record({"topic": topic, "reader": reader, "released_partitions": count}, as_json)


@readers.command()
@click.argument("topic", shell_complete=complete_topics)
@click.argument("reader", required=False)
@duration_option("--idle", "idle_s", help="Only positions that have not been written for this long")
@yes_option
@common_options
def forget(topic: str, reader: str | None, idle_s: float | None, yes: bool, as_json: bool) -> None:
    """Delete the position of READER in broadcast TOPIC, or of all readers; one that comes back begins at the end."""
    if reader is None and idle_s is None:
        raise click.UsageError("Name a reader, or say --idle DURATION.")
    admin = open_stream().admin()
    confirm(f"Delete the positions of {reader or 'all readers'} of topic {topic!r}?", yes)
    count = admin.readers.forget(topic, reader, idle_s=idle_s or 0.0)
    print_record({"topic": topic, "reader": reader, "forgotten_rows": count}, as_json)
