"""``ems readers``."""

from __future__ import annotations

from dataclasses import asdict

import click

from .common import DURATION, confirm, json_option, open_stream, read_duration, stream_options, yes_option
from .output import print_record, print_rows


@click.group()
@stream_options
def readers() -> None:
    """List where the named readers of broadcast topics are; forget those that are gone.

    Only readers with a stable name are kept; the others begin at the end of the topic when they start.
    """


@readers.command("list")
@click.argument("topic", required=False)
@json_option
@stream_options
def list_(topic: str | None, as_json: bool) -> None:
    """List the readers of TOPIC, or of all topics, with their next offsets; times are UTC.

    OPEN is yes from a reader's start to its end; it stays so when its process was killed.
    """
    rows = [asdict(row) for row in open_stream().admin().readers.list(topic)]
    columns = ["topic", "reader", "partition", "next_offset", "lag", "open", "stored_at"]
    print_rows(rows, columns, as_json, "There are no named readers.")


@readers.command()
@click.argument("topic")
@click.argument("reader", required=False)
@click.option(
    "--idle",
    "idle_s",
    metavar="DURATION",
    callback=read_duration,
    help=f"Only those that were not written for so long: {DURATION}.",
)
@yes_option
@json_option
@stream_options
def forget(topic: str, reader: str | None, idle_s: float | None, yes: bool, as_json: bool) -> None:
    """Forget where READER is in TOPIC, or all readers; one that comes back begins at the end."""
    if reader is None and idle_s is None:
        raise click.UsageError("Name a reader, or say --idle DURATION.")
    admin = open_stream().admin()
    confirm(f"Forget where {reader or 'the readers'} of topic {topic!r} had come to?", yes)
    count = admin.readers.forget(topic, reader, idle_s=idle_s or 0.0)
    print_record({"topic": topic, "reader": reader, "forgotten_rows": count}, as_json)
