"""``ems readers``."""

from __future__ import annotations

from dataclasses import asdict

import click

from .common import common_options, confirm, duration_option, open_stream, stream_options, yes_option
from .completing import complete_topics
from .output import print_record, print_rows


@click.group()
@stream_options
def readers() -> None:
    """List the positions of named readers of broadcast topics; delete old ones.

    Only readers with a stable name are kept; the others begin at the end of the topic when they start.
    """


@readers.command("list")
@click.argument("topic", required=False, shell_complete=complete_topics)
@common_options
def list_(topic: str | None, as_json: bool) -> None:
    """List the readers of TOPIC, or of all topics, with their next offsets; times are UTC.

    OPEN is yes from a reader's start to its end; it stays so when its process was killed.
    """
    rows = [asdict(row) for row in open_stream().looking().readers.list(topic)]
    columns = ["topic", "reader", "partition", "next_offset", "lag", "open", "stored_at"]
    print_rows(rows, columns, as_json, "There are no named readers.", spare=["stored_at"])


@readers.command()
@click.argument("topic", shell_complete=complete_topics)
@click.argument("reader", required=False)
@duration_option("--idle", "idle_s", help="Only positions that have not been written for this long")
@yes_option
@common_options
def forget(topic: str, reader: str | None, idle_s: float | None, yes: bool, as_json: bool) -> None:
    """Delete the position of READER in TOPIC, or of all readers; one that comes back begins at the end."""
    if reader is None and idle_s is None:
        raise click.UsageError("Name a reader, or say --idle DURATION.")
    admin = open_stream().admin()
    confirm(f"Delete the positions of {reader or 'all readers'} of topic {topic!r}?", yes)
    count = admin.readers.forget(topic, reader, idle_s=idle_s or 0.0)
    print_record({"topic": topic, "reader": reader, "forgotten_rows": count}, as_json)
