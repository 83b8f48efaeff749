"""``ems messages``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from emsworker.console.completing import complete_groups, complete_topics
from emsworker.console.dialogue import progress
from emsworker.console.options import COUNT, OFFSETS, common_options, raw_option, stream_options
from emsworker.console.output import (
    cut_body,
    print_body,
    print_gap,
    print_json,
    print_record,
    print_rows,
    shown_priority,
    text_of,
)
from emsworker.console.streams import open_stream
from emsworker.core.counted import counted

from .selection import read_after, selection_of, selection_options

if TYPE_CHECKING:
    from emsworker.admin import Page, StoredMessage

_COLUMNS = ["partition", "offset", "id", "key", "tag", "priority", "size", "born_at"]


@click.group()
@stream_options
def messages() -> None:
    """Look at messages: list, peek, get, contains. Nothing is changed or claimed."""


@messages.command("list")
@click.argument("topic", shell_complete=complete_topics)
@selection_options
@click.option("--after", metavar="P/O", callback=read_after, help="Begin after this place: the next page.")
@click.option("--limit", type=COUNT, default=50, show_default=True, help="Maximum number.")
@click.option(
    "--scan",
    type=OFFSETS,
    default=100_000,
    show_default=True,
    help="Maximum number of offsets to scan for conditions that no index covers.",
)
@click.option("--newest", is_flag=True, help="Begin at the end.")
@common_options
def list_(topic: str, after: tuple[int, int] | None, newest: bool, as_json: bool, **given: Any) -> None:
    """List messages of TOPIC, a page at a time.

    Places, times and ids are found by indexes; keys, tags and predicates need a scan from there on, and the number of
    scanned offsets is reported. JSON has the headers and bodies too, of some 4 MB together; a page ends then.

    A predicate compares id, key, tag, partition, offset, size, born_at, producer, header('name') and body.path[0] with
    texts in single quotes, numbers, true and false, by = <> < <= > >= in like between, is null, and, or, not.
    """
    selection = selection_of(given)
    stream = open_stream().looking().messages
    with progress("Looking", given["scan"]) as bar:
        page = stream.list(topic, selection, after=after, newest=newest, bodies=as_json, progress=bar.update, **given)
    _print_page(page, as_json)


def _print_page(page: Page, as_json: bool) -> None:
    rows = [_record(message) for message in page.messages]
    after = None if page.after is None else f"{page.after[0]}/{page.after[1]}"
    if as_json:
        print_json({"messages": rows, "looked_at": page.looked_at, "unreadable": page.unreadable, "after": after})
        return
    print_rows(rows, _COLUMNS, False, "No such message was found.", spare=["priority", "size", "tag"])
    more = f"; --after {after} continues from there" if after is not None else ""
    unread = f", {counted(page.unreadable, 'body')} could not be read" if page.unreadable else ""
    click.echo(f"Looked at {counted(page.looked_at, 'offset')}{unread}{more}.", err=True)


def _record(message: StoredMessage) -> dict[str, Any]:
    record = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "id": message.id,
        "key": text_of(message.key),
        "tag": text_of(message.tag),
        "priority": shown_priority(message.headers),
        "producer": message.producer,
        "born_at": message.born_at,
        "size": message.size,
        "headers": dict(message.headers),
    }
    if message.raw is None:
        return record
    return record | {"body": message.text if message.problem else message.body, "problem": message.problem}


@messages.command()
@click.argument("topic", shell_complete=complete_topics)
@click.argument("group", shell_complete=complete_groups)
@click.option("--limit", "-n", type=COUNT, default=10, show_default=True, help="Of each partition.")
@common_options
def peek(topic: str, group: str, limit: int, as_json: bool) -> None:
    """Show the next messages of TOPIC that GROUP has not claimed; they stay where they are."""
    _print_page(open_stream().looking().messages.peek(topic, group, limit=limit, bodies=as_json), as_json)


@messages.command()
@click.argument("message")
@click.option("--topic", shell_complete=complete_topics, help="Look there only.")
@raw_option
@common_options
def get(message: str, topic: str | None, raw: bool, as_json: bool) -> None:
    """Show MESSAGE with its headers and body.

    MESSAGE is a message id, or topic/partition/offset. `ems trace` shows its history.

    A body is decoded up to 1 MB, unpacked, and 100,000 values. A larger one, and YAML or pickle, is shown as it is
    stored, as text of up to 64 KB; PROBLEM says why.
    """
    messages = open_stream().looking().messages.get(message, topic, whole=raw)
    if raw:
        if len(messages) > 1:
            raise click.UsageError("Several topics have a message of this id; --topic chooses one.")
        print_body(messages[0].raw or b"")
        return
    found = [_record(one) for one in messages]
    if as_json:
        print_json(found)
        return
    found = [record | {"body": cut_body(record["body"])} for record in found]
    for number, record in enumerate(found):
        if number:
            print_gap()
        print_record(record, False)


@messages.command()
@click.argument("topic", shell_complete=complete_topics)
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@common_options
@click.pass_context
def contains(ctx: click.Context, topic: str, ids: tuple[str, ...], as_json: bool) -> None:
    """Check if TOPIC holds messages with these IDs; the exit code is 1 if one is missing.

    WHERE is stream, delayed, or - for what was never sent, was cancelled, or has been deleted.
    """
    found = open_stream().looking().messages.contains(topic, ids)
    rows = [{"id": one, "where": where} for one, where in found.items()]
    print_rows(rows, ["id", "where"], as_json, "")
    if not all(found.values()):
        ctx.exit(1)
