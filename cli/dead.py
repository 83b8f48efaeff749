"""``ems dead``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from emsworker.console.completing import complete_dead_tasks, complete_errors, complete_groups, complete_topics
from emsworker.console.dialogue import confirm, progress
from emsworker.console.failures import Errors, each_of, end_with
from emsworker.console.options import (
    COUNT,
    common_options,
    raw_option,
    read_moment,
    stream_options,
    together,
    yes_option,
)
from emsworker.console.output import (
    cut_body,
    print_body,
    print_done,
    print_gap,
    print_json,
    print_record,
    print_rows,
    text_of,
)
from emsworker.console.streams import open_stream
from emsworker.core.counted import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from emsworker.admin import DeadLetter, DeadLetters, DeadRef
    from emsworker.admin.dead import DeadEntry, DeadFilter
    from emsworker.console.streams import OpenStream

_PAGE = 10_000

topic_option = click.option("--topic", shell_complete=complete_topics, help="Only dead letters of this topic.")
group_option = click.option("--group", shell_complete=complete_groups, help="Only dead letters of this group.")
_filter_options = together(
    topic_option,
    group_option,
    click.option(
        "--task", metavar="NAME", shell_complete=complete_dead_tasks, help="Only calls of this task; '' for no task."
    ),
    click.option(
        "--error", metavar="CLASS", shell_complete=complete_errors, help="Only those whose last error is of this class."
    ),
    click.option(
        "--since",
        metavar="DURATION|TIME",
        callback=read_moment,
        help="Only those that died within it, or from then on.",
    ),
    click.option("--until", metavar="DURATION|TIME", callback=read_moment, help="Only those that died before."),
)


@click.group()
@stream_options
def dead() -> None:
    """List, show, requeue and delete dead letters.

    A dead letter is a message that one group gave up: it used up its attempts, or its handler rejected it. It is kept
    with its body and its errors until it is requeued or deleted.
    """


def _filter_of(stream: OpenStream, given: dict[str, Any]) -> DeadFilter:
    """Return the selection that was given; its options are taken out of ``given``."""
    from emsworker.admin.dead import DeadFilter

    since, until = (_moment(stream, given.pop(name)) for name in ("since", "until"))
    names = {name: given.pop(name) for name in ("topic", "group", "task", "error")}
    return DeadFilter(**names, since=since, until=until)


def _moment(stream: OpenStream, value: float | datetime | None) -> datetime | None:
    """Return a time; a duration is counted back from the server's now."""
    from datetime import timedelta

    return stream.now() - timedelta(seconds=value) if isinstance(value, int | float) else value


@dead.command("list")
@_filter_options
@click.option(
    "--by",
    multiple=True,
    type=click.Choice(["topic", "group", "task", "error"]),
    help="Count them by this instead of listing them; may be repeated.",
)
@click.option("--limit", type=COUNT, default=50, show_default=True, help="Maximum number of rows.")
@click.option("--after", metavar="TOKEN", help="The next page, as the page before names it.")
@common_options
def list_(by: tuple[str, ...], limit: int, after: str | None, as_json: bool, **given: Any) -> None:
    """List dead letters, the newest first, or count them with --by.

    ERROR is the class of the last error, and REASON why the message was given up; `ems dead show` has the traceback.
    """
    if by and after is not None:
        raise click.UsageError("--by shows one page; leave out --after, or raise --limit.")
    stream = open_stream()
    letters, only = stream.admin().dead, _filter_of(stream, given)
    if by:
        _print_classes(letters, only, tuple(dict.fromkeys(by)), limit, as_json)
        return
    found, after = _pages(letters, only, after, limit)
    rows = [
        {
            "topic": one.topic,
            "group": one.group,
            "partition": one.partition,
            "offset": one.offset,
            "id": one.id,
            "task": one.task or None,
            "error": one.error_type or None,
            "key": text_of(one.key),
            "tag": text_of(one.tag),
            "born_at": one.born_at,
            "dead_at": one.dead_at,
            "attempts": one.attempts,
            "reason": one.reason,
        }
        for one in found
    ]
    if as_json:
        print_json({"dead_letters": rows, "after": after})
        return
    columns = ["topic", "group", "partition", "offset", "id", "task", "error", "dead_at", "attempts", "reason"]
    spare = ["attempts", "dead_at", "reason", "partition", "offset"]  # the id says where it is
    print_rows(rows, columns, False, "There are no such dead letters.", spare=spare)
    if after is not None:
        click.echo(f"There are more; --after {after} shows the next page.", err=True)


def _pages(letters: DeadLetters, only: DeadFilter, after: str | None, limit: int) -> tuple[list[DeadEntry], str | None]:
    """Read pages until there are enough rows; without reasons if this user must not read them."""
    from emsworker.core.errors import AccessDenied

    found: list[DeadEntry] = []
    details = True
    while len(found) < limit:
        size = min(limit - len(found), _PAGE)
        try:
            page = letters.page(only, after=after, limit=size, details=details)
        except AccessDenied:
            if not details:
                raise
            details = False
            continue
        found += page.rows
        after = page.after
        if after is None:
            break
    return found, after


def _print_classes(letters: DeadLetters, only: DeadFilter, by: Sequence[str], limit: int, as_json: bool) -> None:
    totals: dict[tuple[str | None, ...], dict[str, Any]] = {}
    for one in letters.classes(only, limit=_PAGE):
        names = {"topic": one.topic, "group": one.group, "task": one.task or None, "error": one.error_type or None}
        key = tuple(names[name] for name in by)
        row = totals.setdefault(key, {name: names[name] for name in by} | {"count": 0, "capped": False})
        row["count"] += one.count
        row["capped"] |= one.capped
        row["latest_at"] = max(one.latest, row.get("latest_at", one.latest))
    rows = sorted(totals.values(), key=lambda row: -row["count"])
    shown = rows[:limit]
    if not as_json:
        shown = [row | {"count": f"{row['count']}+" if row["capped"] else row["count"]} for row in shown]
    print_rows(shown, [*by, "count", "latest_at"], as_json, "There are no such dead letters.")
    if len(rows) > limit:
        click.echo(f"There are {len(rows) - limit} more rows; --limit shows them.", err=True)


@dead.command()
@click.argument("message")
@topic_option
@group_option
@raw_option
@common_options
def show(message: str, topic: str | None, group: str | None, raw: bool, as_json: bool) -> None:
    """Show the dead letters of MESSAGE with body, headers, error and every attempt.

    MESSAGE is a message id, or topic/partition/offset. There is one dead letter for each group that gave it up. A body
    is decoded as by `ems messages get`.
    """
    letters = open_stream().admin().dead
    refs = letters.find(message, topic, group)
    if raw:
        print_body(letters.show(refs[0]).raw)
        return
    found = [_record(letters.show(ref, whole=False)) for ref in refs]
    if as_json:
        print_json(found)
        return
    for number, record in enumerate(found):
        if number:
            print_gap()
        attempts = record.pop("attempts_made")
        print_record(record | {"body": cut_body(record["body"])}, False)
        print_gap()
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
        "size": letter.size,
        "body": letter.body_text if letter.body_error else letter.body,
        "body_error": letter.body_error,
        "error": letter.error,
        "attempts_made": [asdict(attempt) for attempt in letter.attempts],
    }


# Options that select dead letters.
_letters_options = together(
    click.argument("messages", nargs=-1),
    click.option("--all", "everything", is_flag=True, help="All of them, or all that the other options select."),
    _filter_options,
    yes_option,
    common_options,
)


@dead.command()
@_letters_options
def requeue(messages: tuple[str, ...], everything: bool, yes: bool, as_json: bool, **given: Any) -> None:
    """Run the dead letters of MESSAGES again, at once and with a fresh ladder.

    MESSAGES are message ids, or topic/partition/offset; - reads them from standard input, one on each line.
    """
    stream = open_stream()
    letters, only = stream.admin().dead, _filter_of(stream, given)
    if everything:
        _refuse_both(messages)
        _each(letters, "Requeue", "Requeued", letters.requeue_all, only, yes, as_json)
    else:
        refs, errors = _refs(letters, messages, only)
        if refs or not errors:
            _report("Requeued", letters.requeue(refs), as_json)
        end_with(errors)


@dead.command()
@_letters_options
def delete(messages: tuple[str, ...], everything: bool, yes: bool, as_json: bool, **given: Any) -> None:
    """Delete the dead letters of MESSAGES permanently.

    MESSAGES are message ids, or topic/partition/offset; - reads them from standard input, one on each line.
    """
    stream = open_stream()
    letters, only = stream.admin().dead, _filter_of(stream, given)
    if everything:
        _refuse_both(messages)
        _each(letters, "Delete", "Deleted", letters.delete_all, only, yes, as_json)
        return
    refs, errors = _refs(letters, messages, only)
    if refs or not errors:
        confirm(f"Delete {counted(len(refs), 'dead letter')} permanently?", yes)
        _report("Deleted", letters.delete(refs), as_json)
    end_with(errors)


def _refuse_both(messages: tuple[str, ...]) -> None:
    if messages:
        raise click.UsageError("Name messages or --all, not both.")


def _refs(letters: DeadLetters, messages: tuple[str, ...], only: DeadFilter) -> tuple[list[DeadRef], Errors]:
    """Return the dead letters of messages, and why there are none of others."""
    if not messages:
        raise click.UsageError("Name messages, or --all.")
    if (only.task, only.error, only.since, only.until) != (None,) * 4:
        raise click.UsageError("--task, --error, --since and --until select among --all.")
    if messages == ("-",):
        messages = tuple(line.strip() for line in sys.stdin if line.strip())
    found, errors = each_of(messages, lambda message: letters.find(message, only.topic, only.group))
    return list(chain.from_iterable(found)), errors


def _each(
    letters: DeadLetters, ask: str, done: str, work: Callable[..., int], only: DeadFilter, yes: bool, as_json: bool
) -> None:
    classes = letters.classes(only, limit=_PAGE)
    length = sum(one.count for one in classes)
    more = "more than " if any(one.capped for one in classes) else ""
    if length:
        confirm(f"{ask} {more}{counted(length, 'dead letter')}?", yes)
    with progress(f"{ask} them", length) as bar:
        count = work(progress=bar.update, only=only)
    _report(done, count, as_json)


def _report(done: str, count: int, as_json: bool) -> None:
    print_done({done.lower(): count}, f"{done} {counted(count, 'dead letter')}.", as_json)
