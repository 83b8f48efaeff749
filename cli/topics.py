"""``ems topics``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from emsworker.core.counted import counted

from .common import (
    COUNT,
    DURATION,
    confirm,
    json_option,
    open_stream,
    progress,
    read_duration,
    stream_options,
    yes_option,
)
from .output import print_json, print_record, print_rows

if TYPE_CHECKING:
    from emsworker.core.model import Topic

_RULES = click.Choice(["rw", "r", "w", "none"])
_KINDS = click.Choice(["cluster", "broadcast"])


@click.group()
@stream_options
def topics() -> None:
    """List, create, change, purge and delete topics."""


def _about(topic: Topic) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "kind": topic.kind.value,
        "partitions": topic.partitions,
        "rule": topic.rule.value,
        "max_message_bytes": topic.max_message_bytes,
        "retention_s": topic.retention_s,
        "trim_done": topic.trim_done,
        "age_wins": topic.age_wins,
        "priorities": topic.priorities,
        "archive_first": topic.archive_first,
    }


@topics.command("list")
@json_option
@stream_options
def list_(as_json: bool) -> None:
    """List all topics, the longest first.

    MESSAGES counts what is kept, without what was cancelled; beyond a thousand offsets it is estimated from a sample if
    some were. BYTES is estimated from the newest messages. Both cost the same however long the topics are.
    """
    ranking = open_stream().monitoring().ranking()
    rows = [_about(size.topic) | {"messages": size.messages, "bytes": size.bytes_estimate} for size in ranking]
    columns = ["topic", "kind", "partitions", "priorities", "rule", "messages", "bytes", "max_message_bytes"]
    columns.append("retention_s")
    print_rows(rows, columns, as_json, "There is no topic yet; `ems topics create NAME` makes one.")


@topics.command()
@click.argument("name")
@click.option("--partitions", type=int, default=1, show_default=True, help="Messages with one key share a partition.")
@click.option(
    "--kind",
    type=_KINDS,
    default="cluster",
    show_default=True,
    help="Each group gets every message once; or a broadcast: every worker process does.",
)
@click.option("--rule", type=_RULES, default="rw", show_default=True, help="Whether it may be read and written.")
@click.option("--max-message-bytes", type=int, default=4 << 20, show_default=True, help="Larger bodies are refused.")
@click.option(
    "--retention",
    "retention_s",
    metavar="DURATION",
    callback=read_duration,
    help=f"Delete messages that are older and that every group has run: {DURATION}.",
)
@click.option("--trim-done", is_flag=True, help="Delete messages as soon as every group has run them.")
@click.option(
    "--age-wins", is_flag=True, help="Delete what is older than --retention even if a group never claimed it."
)
@click.option("--priorities", type=int, default=1, show_default=True, help="Number of priority levels, at most 10.")
@click.option("--archive-first", is_flag=True, help="Drop nothing before `ems pipeline archive` has copied it.")
@click.option("--if-missing", is_flag=True, help="Do nothing if a topic of that name exists.")
@json_option
@stream_options
def create(name: str, if_missing: bool, as_json: bool, **settings: Any) -> None:
    """Create the topic NAME."""
    from emsworker.core.errors import AlreadyExists

    admin = open_stream().admin()
    try:
        topic = admin.create_topic(name, **settings)
    except AlreadyExists:
        if not if_missing:
            raise
        topic = admin.topic(name)
    print_record(_about(topic), as_json)


@topics.command()
@click.argument("name")
@click.option("--partitions", type=int, help="Only more of them; keys are spread anew, so their order starts anew.")
@click.option("--rule", type=_RULES, help="rw; r: only reading; w: only writing; none. Acts within a second.")
@click.option("--max-message-bytes", type=int, help="Larger bodies are refused from now on.")
@click.option(
    "--retention",
    "retention_s",
    metavar="DURATION",
    callback=read_duration,
    help=f"Delete messages that are older and that every group has run: {DURATION}.",
)
@click.option("--trim-done/--no-trim-done", default=None, help="Delete messages as soon as every group has run them.")
@click.option("--age-wins/--no-age-wins", default=None, help="Delete what is too old even if a group never claimed it.")
@click.option("--priorities", type=int, help="Number of priority levels, at most 10; it can only grow.")
@click.option(
    "--archive-first/--no-archive-first", default=None, help="Drop nothing before `ems pipeline archive` has copied it."
)
@click.option("--keep-forever", is_flag=True, help="Set no retention.")
@json_option
@stream_options
def change(name: str, keep_forever: bool, as_json: bool, **settings: Any) -> None:
    """Change settings of the topic NAME; what is not named stays as it is."""
    changes = {key: value for key, value in settings.items() if value is not None}
    if keep_forever:
        if "retention_s" in changes:
            raise click.UsageError("--retention and --keep-forever contradict each other.")
        changes |= {"retention_s": None, "trim_done": False, "age_wins": False}
    if not changes:
        raise click.UsageError("Nothing to change; name at least one setting.")
    print_record(_about(open_stream().admin().change_topic(name, **changes)), as_json)


@topics.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Also when groups have unfinished work: it is lost.")
@yes_option
@json_option
@stream_options
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
    if as_json:
        print_json({"topic": name, "deleted_rows": rows})
    else:
        click.echo(f"Deleted topic {name} ({counted(rows, 'row')}).")


@topics.command()
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Only count.")
@yes_option
@json_option
@stream_options
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
@click.argument("name")
@click.option("--limit", type=COUNT, default=100, show_default=True, help="How many at most.")
@json_option
@stream_options
def stale(name: str, limit: int, as_json: bool) -> None:
    """List retries in the topic NAME whose message is gone; a worker that takes one drops it."""
    rows = open_stream().admin().stale_retries(name, limit)
    print_rows(rows, ["group", "partition", "offset", "attempt", "due_at"], as_json, "There is none.")
