"""``ems topics``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from emsworker.console.completing import complete_topics
from emsworker.console.dialogue import confirm, progress, say_age, say_more
from emsworker.console.options import (
    COUNT,
    changes_of,
    common_options,
    duration_option,
    exact_option,
    most_option,
    stream_options,
    yes_option,
)
from emsworker.console.output import print_done, print_record, print_rows
from emsworker.console.streams import open_main, open_stream
from emsworker.core.counted import counted
from emsworker.core.model import Topic

from .settings import change_options, create_or_get, creation_options, if_missing_option, listed, record

if TYPE_CHECKING:
    from emsworker.admin.monitoring import TopicSize


@click.group()
@stream_options
def topics() -> None:
    """List, create, change, move, purge and delete topics."""


def _about(topic: Topic) -> dict[str, Any]:
    return {"topic": topic.name, **record(topic)}


def _listed(size: TopicSize) -> dict[str, Any]:
    about = _about(size.topic) | {"keeps": size.topic.keeps}
    return about | {"messages": size.messages, "bytes": size.bytes_estimate}


@topics.command("list")
@most_option
@exact_option
@common_options
def list_(limit: int, exact: bool, as_json: bool) -> None:
    """List topics, the longest first.

    KEEPS says how long: "1h after done" is that long after every group has run a message, "7d" that long after it was
    sent, and at least until every group has run it.

    MESSAGES counts what is kept, without what was cancelled; beyond a thousand offsets it is estimated from a sample if
    some were. BYTES is estimated from the newest messages. Both cost the same however long the topics are.

    With more than 2,000 partitions, the list is that of the latest samples of the beat: MESSAGES are offsets then, and
    BYTES are not known; a note says how old it is.
    """
    standing = open_stream().standings().topics(limit, exact=exact, measured=False)
    say_age(standing.age_s)
    say_more(len(standing.topics), standing.count, "topic", "that are longest")
    rows = [_listed(size) for size in standing.topics]
    columns = ["topic", *listed(Topic), "keeps", "messages", "bytes"]
    empty = "There is no topic yet; `ems topics create NAME` makes one."
    print_rows(rows, columns, as_json, empty, spare=["max_message_bytes", "rule", "priorities"])


@topics.command()
@click.argument("name")
@creation_options(Topic)
@if_missing_option
@common_options
def create(name: str, if_missing: bool, as_json: bool, **settings: Any) -> None:
    """Create the topic NAME."""
    admin = open_stream().admin()
    topic = create_or_get(lambda: admin.create_topic(name, **settings), lambda: admin.topic(name), if_missing)
    print_record(_about(topic), as_json)


@topics.command()
@click.argument("name", shell_complete=complete_topics)
@change_options(Topic)
@click.option("--keep-forever", is_flag=True, help="Keep every message, and its log.")
@common_options
def change(name: str, keep_forever: bool, as_json: bool, **settings: Any) -> None:
    """Change settings of the topic NAME; the others keep their values."""
    changes = changes_of(settings)
    if keep_forever:
        if "retention_s" in changes or "keep_done_s" in changes:
            raise click.UsageError("--keep-forever contradicts --retention and --keep-done.")
        changes |= {"retention_s": None, "keep_done_s": None, "age_wins": False}
    if not changes:
        raise click.UsageError("Nothing to change; name at least one setting.")
    print_record(_about(open_stream().admin().change_topic(name, **changes)), as_json)


@topics.command()
@click.argument("name", shell_complete=complete_topics)
@click.option("--force", is_flag=True, help="Delete it even if groups have unfinished work, which is lost.")
@yes_option
@common_options
def delete(name: str, force: bool, yes: bool, as_json: bool) -> None:
    """Delete the topic NAME with its messages, groups and dead letters.

    Refused while a group has live claims or messages waiting for a retry, unless forced.
    """
    admin = open_stream().admin()
    length = admin.count_messages(admin.topic(name))
    confirm(f"Delete topic {name!r} with {counted(length, 'offset')} and all its groups?", yes)
    rows = 0
    with progress(f"Deleting {name}", length) as bar:

        def step(deleted: int) -> None:
            nonlocal rows
            rows += deleted
            bar.update(deleted)

        admin.delete_topic(name, force=force, progress=step)
    print_done({"topic": name, "deleted_rows": rows}, f"Deleted topic {name} ({counted(rows, 'row')}).", as_json)


@topics.command()
@click.argument("name", shell_complete=complete_topics)
@click.option("--to", "target", required=True, metavar="SERVER", help="The server that keeps it from now on.")
@duration_option("--timeout", help="How long to wait for the groups; for ever")
@click.option("--force", is_flag=True, help="Move it even if live processes do not know the server.")
@common_options
def move(name: str, target: str, timeout: float | None, force: bool, as_json: bool) -> None:
    """Move the topic NAME to another server, while it is used.

    Sends go to the new server at once. Its groups begin there as soon as they have finished what is on the old one,
    retries included, so that nothing is run twice or out of order. Its schedules, alarm rules and silences go along.
    What the old server has kept stays there.

    Refused while live workers or consumers were started without the server in EMS_SERVERS, unless forced: they would
    fail at each use of the topic. Processes that only send are not known.

    If it is interrupted, or takes longer than --timeout, give the command again: it goes on where it stopped. A server
    that has nothing to do with it may be away; it is told when the command is given again.
    """
    from emsworker.admin.placement import TopicMove

    app = open_main().app()
    move = TopicMove(app, name, target)
    with progress(f"Moving {name}", None) as bar:
        moved = move.run(timeout, lambda left: bar.update(0), force=force)
    app.close()
    for server in moved.unread:
        click.echo(
            f"Messages stay on server {server}, where the topic had no group to run them; groups that are created from "
            f"now on begin after them. `ems groups create {name} GROUP --server {server}` has GROUP run them.",
            err=True,
        )
    for server, rules in moved.alarms.items():
        click.echo(
            f"Alarm rules that watched the topic stay on server {server}: {', '.join(rules)}. Rules of this topic go "
            f"along unless they fire, or {target} has others of their names; those of every topic are to be created on "
            "each server.",
            err=True,
        )
    if moved.untold:
        click.echo(
            f"Away, and not told: {', '.join(moved.untold)}. If the topic has been there, give the command again when "
            "it answers; until then, processes that start look for the topic on every server.",
            err=True,
        )
    record = {"topic": name, "from": list(moved.sources), "to": target, "groups": moved.groups}
    record |= {"untold": list(moved.untold)} if moved.untold else {}
    record |= {"alarms": {server: list(rules) for server, rules in moved.alarms.items()}} if moved.alarms else {}
    done = f"Moved topic {name} to server {target} with {counted(moved.groups, 'group')}."
    print_done(record, done if moved.sources else f"Topic {name} is on server {target} already.", as_json)


@topics.command()
@click.argument("name", shell_complete=complete_topics)
@click.option("--dry-run", is_flag=True, help="Only count.")
@yes_option
@common_options
def purge(name: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Cancel everything in the topic NAME that some group has not finished.

    Messages lose their bodies, delayed ones and those waiting for a retry are deleted. Offsets, groups and dead letters
    stay; what is sent meanwhile is not touched.
    """
    admin = open_stream().admin()
    found = admin.purge_topic(name, dry_run=True)
    total = found.messages + found.delayed + found.retries
    if not dry_run:
        confirm(f"Cancel {counted(total, 'message')} of topic {name!r} in all its groups?", yes)
        with progress(f"Purging {name}", total) as bar:
            found = admin.purge_topic(name, progress=bar.update)
    record = {"topic": name, "messages": found.messages, "delayed": found.delayed, "retries": found.retries}
    print_record(record | {"dry_run": dry_run}, as_json)


@topics.command()
@click.argument("name", shell_complete=complete_topics)
@click.option("--limit", type=COUNT, default=100, show_default=True, help="Maximum number.")
@common_options
def stale(name: str, limit: int, as_json: bool) -> None:
    """List retries in the topic NAME whose message is gone; a worker that takes one drops it."""
    rows = open_stream().admin().stale_retries(name, limit)
    print_rows(rows, ["group", "partition", "offset", "attempt", "due_at"], as_json, "There is none.")
