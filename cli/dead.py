"""``ems dead``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from emsworker.core.counted import counted

from .common import COUNT, common_options, confirm, open_stream, progress, stream_options, together, yes_option
from .completing import complete_groups, complete_topics
from .output import print_done, print_json, print_record, print_rows, text_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from emsworker.admin import DeadLetter, DeadLetters, DeadRef

topic_option = click.option("--topic", shell_complete=complete_topics, help="Only dead letters of this topic.")
group_option = click.option("--group", shell_complete=complete_groups, help="Only dead letters of this group.")


@click.group()
@stream_options
def dead() -> None:
    """List, show, requeue and delete dead letters.

    A dead letter is a message that one group gave up: it used up its attempts, or its handler rejected it. It is kept
    with its body and its errors until it is requeued or deleted.
    """


@dead.command("list")
@topic_option
@group_option
@click.option("--limit", type=COUNT, default=50, show_default=True, help="Maximum number.")
@click.option(
    "--skip", type=click.IntRange(0, 1_000_000_000), default=0, help="Leave out the first n, for the next page."
)
@common_options
def list_(topic: str | None, group: str | None, limit: int, skip: int, as_json: bool) -> None:
    """List dead letters, in the order of the stream."""
    from emsworker.core.ids import uid_text

    admin = open_stream().admin()
    names = {one.id: (place.name, one.name) for place, one in admin.groups(topic)}
    found = list(islice(admin.dead.iterate(topic, group), skip, skip + limit + 1))
    rows = [
        {
            "topic": names[row.group_id][0],
            "group": names[row.group_id][1],
            "partition": row.partition,
            "offset": row.offset,
            "id": uid_text(row.uid),
            "key": text_of(row.key),
            "tag": text_of(row.tag),
            "born_at": row.born_at,
            "dead_at": row.dead_at,
            "attempts": row.attempts,
            "reason": row.reason,
        }
        for row in found[:limit]
    ]
    columns = ["topic", "group", "partition", "offset", "id", "dead_at", "attempts", "reason"]
    print_rows(rows, columns, as_json, "There are no dead letters." if not skip else "There are no more dead letters.")
    if len(found) > limit and not as_json:
        click.echo(f"There are more; --skip {skip + limit} shows the next page.", err=True)


@dead.command()
@click.argument("message")
@topic_option
@group_option
@common_options
def show(message: str, topic: str | None, group: str | None, as_json: bool) -> None:
    """Show the dead letters of MESSAGE with body, headers, error and every attempt.

    MESSAGE is a message id, or topic/partition/offset. There is one dead letter for each group that gave it up.
    """
    letters = open_stream().admin().dead
    found = [_record(letters.show(ref)) for ref in letters.find(message, topic, group)]
    if as_json:
        print_json(found)
        return
    for number, record in enumerate(found):
        if number:
            click.echo()
        attempts = record.pop("attempts_made")
        print_record(record, False)
        click.echo()
        columns = ["attempt", "outcome", "ended_at", "ran_ms", "client_id"]
        print_rows(attempts, columns, False, "No attempt is known.", spare=["ran_ms"])


def _record(letter: DeadLetter) -> dict[str, Any]:
    row = letter.row
    return {
        "topic": letter.topic.name,
        "group": letter.group.name,
        "partition": row.partition,
        "offset": row.offset,
        "id": letter.id,
        "key": text_of(row.key),
        "tag": text_of(row.tag),
        "producer": letter.producer_id,
        "born_at": row.born_at,
        "dead_at": row.dead_at,
        "attempts": row.attempts,
        "reason": row.reason,
        "headers": dict(letter.headers),
        "size": len(letter.raw),
        "body": text_of(letter.raw) if letter.body_error else letter.body,
        "body_error": letter.body_error,
        "error": letter.error,
        "attempts_made": [asdict(attempt) for attempt in letter.attempts],
    }


# Options that select dead letters.
_letters_options = together(
    click.argument("messages", nargs=-1),
    click.option("--all", "everything", is_flag=True, help="All of them, or all of --topic and --group."),
    topic_option,
    group_option,
    yes_option,
    common_options,
)


@dead.command()
@_letters_options
def requeue(
    messages: tuple[str, ...], everything: bool, topic: str | None, group: str | None, yes: bool, as_json: bool
) -> None:
    """Run the dead letters of MESSAGES again, at once and with a fresh ladder.

    MESSAGES are message ids, or topic/partition/offset; - reads them from standard input, one on each line.
    """
    letters = open_stream().admin().dead
    if everything:
        _refuse_both(messages)
        _each(letters, "Requeue", "Requeued", letters.requeue_all, (topic, group), yes, as_json)
    else:
        _report("Requeued", letters.requeue(_refs(letters, messages, topic, group)), as_json)


@dead.command()
@_letters_options
def delete(
    messages: tuple[str, ...], everything: bool, topic: str | None, group: str | None, yes: bool, as_json: bool
) -> None:
    """Delete the dead letters of MESSAGES permanently.

    MESSAGES are message ids, or topic/partition/offset; - reads them from standard input, one on each line.
    """
    letters = open_stream().admin().dead
    if everything:
        _refuse_both(messages)
        _each(letters, "Delete", "Deleted", letters.delete_all, (topic, group), yes, as_json)
        return
    refs = _refs(letters, messages, topic, group)
    confirm(f"Delete {counted(len(refs), 'dead letter')} permanently?", yes)
    _report("Deleted", letters.delete(refs), as_json)


def _refuse_both(messages: tuple[str, ...]) -> None:
    if messages:
        raise click.UsageError("Name messages or --all, not both.")


def _refs(letters: DeadLetters, messages: tuple[str, ...], topic: str | None, group: str | None) -> list[DeadRef]:
    if not messages:
        raise click.UsageError("Name messages, or --all.")
    if messages == ("-",):
        messages = tuple(line.strip() for line in sys.stdin if line.strip())
    # All are found before the first is changed, so that a mistyped one changes nothing.
    return [ref for message in messages for ref in letters.find(message, topic, group)]


def _each(
    letters: DeadLetters,
    ask: str,
    done: str,
    work: Callable[..., int],
    where: tuple[str | None, str | None],
    yes: bool,
    as_json: bool,
) -> None:
    length = letters.count(*where)
    if length:
        confirm(f"{ask} {counted(length, 'dead letter')}?", yes)
    with progress(f"{ask} them", length) as bar:
        count = work(*where, bar.update)
    _report(done, count, as_json)


def _report(done: str, count: int, as_json: bool) -> None:
    print_done({done.lower(): count}, f"{done} {counted(count, 'dead letter')}.", as_json)
