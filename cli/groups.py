"""``ems groups``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from emsworker.console.completing import complete_groups, complete_topics
from emsworker.console.dialogue import confirm, first_of, progress, say_age, say_more
from emsworker.console.options import (
    NONE_OR_MORE,
    PARTITION,
    changes_of,
    common_options,
    duration_option,
    exact_option,
    most_option,
    read_headers,
    stream_options,
    together,
    yes_option,
)
from emsworker.console.output import print_done, print_record, print_rows
from emsworker.console.streams import open_stream
from emsworker.core.counted import counted
from emsworker.core.model import Group

from .limits import limit
from .selection import below_option, read_after, selection_of, selection_options, skip_options, skip_policy_of
from .settings import change_options, create_or_get, creation_options, if_missing_option, listed, record

if TYPE_CHECKING:
    from emsworker.admin import Replay, Replayed, SkipPolicy
    from emsworker.admin.group_states import GroupStatus
    from emsworker.admin.monitoring import GroupLag
    from emsworker.core.selection.filters import Filter


@click.group()
@stream_options
def groups() -> None:
    """List groups with their lag; create, change, pause, limit, reset and delete them."""


groups.add_command(limit)


def _filter(tags: Sequence[str], headers: Sequence[str]) -> Filter:
    from emsworker.core.selection.filters import Filter

    return Filter(tags, read_headers(headers))


def _about(topic: str, group: Group, policy: SkipPolicy | None = None) -> dict[str, Any]:
    return {"topic": topic, "group": group.name, **record(group), "skips": str(policy or "nothing")}


_COUNTED = 10_000  # retries, and dead letters, of a group: the list reads no more rows, however many there are
_LAG = ("lag", "unclaimed", "claimed", "waiting", "retries", "dead", "skipped")


def _lag_row(lag: GroupLag, policy: SkipPolicy | None, status: GroupStatus) -> dict[str, Any]:
    partitions = [
        {key: value for key, value in asdict(one).items() if key not in ("group_id", "lowest")}
        for one in lag.partitions
    ] or None
    counts = {name: getattr(lag, name) for name in _LAG} | {
        "capped": lag.capped,
    }
    counts |= {"state": str(status), "alarms": list(status.alarms)}
    return _about(lag.topic.name, lag.group, policy) | counts | {"oldest_s": lag.oldest_age_s, "partitions": partitions}


@groups.command("list")
@click.argument("topic", required=False, shell_complete=complete_topics)
@click.option("--partitions", is_flag=True, help="One line for each partition.")
@most_option
@exact_option
@common_options
def list_(topic: str | None, partitions: bool, limit: int, exact: bool, as_json: bool) -> None:
    """List the groups of TOPIC, or those with the most lag, and what they do.

    STATE is paused, no consumer (messages have waited for 10 seconds, and nothing of the group runs), working or idle;
    alarm stands there while an alarm fires for the group.

    LAG is what is not finished: UNCLAIMED messages, those that live clients have CLAIMED, those that are WAITING for
    another client because theirs has stopped or died, and RETRIES. DEAD letters do not count, nor what was SKIPPED:
    passed over by a policy, by hand or by retention. OLDEST is the age of the oldest unfinished message by the server's
    clock. Retries and dead letters of a group are counted up to 10,000, shown as 10,000+ ("capped" in JSON).

    With more than 2,000 partitions and groups x partitions, the list of all is that of the latest samples of the
    beat, without partitions; a note says how old it is. The list of one TOPIC is always read now.
    """
    stream = open_stream()
    admin = stream.looking()
    if topic is not None:
        admin.topic(topic)
    policies = admin.backlogs.policies()
    if topic is not None:
        of_topic = stream.monitoring().lag(_COUNTED, topic=topic)
        lags: Sequence[GroupLag] = first_of(of_topic, limit, "group", "that are first by name")
    else:
        standing = stream.standings().groups(limit, most=_COUNTED, exact=exact or partitions)
        lags = sorted(standing.groups, key=lambda lag: (lag.topic.name, lag.group.name))
        say_age(standing.age_s)
        say_more(len(lags), standing.count, "group", "with the most lag")
    states = stream.standings().states(lags)
    rows = [_lag_row(lag, policies.get(lag.group.id), states[lag.group.id]) for lag in lags]
    if partitions:
        spread = [
            {"topic": row["topic"], "group": row["group"], **one} for row in rows for one in row["partitions"] or ()
        ]
        columns = ["topic", "group", "partition", "last_offset", "cursor", *_LAG[1:]]
        print_rows(spread, columns, as_json, "There is no group yet.", spare=["skipped", "last_offset", "cursor"])
        return
    columns = ["topic", "group", "state", *_LAG, "oldest_s", *(name for name in listed(Group) if name != "paused")]
    empty = "There is no group yet; workers create theirs when they start."
    print_rows(rows, columns, as_json, empty, spare=["skipped", "timeout_s", "waiting", "claimed"])


group_arguments = together(
    click.argument("topic", shell_complete=complete_topics), click.argument("name", shell_complete=complete_groups)
)
_filter_options = together(
    click.option("--tag", "tags", multiple=True, help="Only messages with this tag; several: any of them."),
    click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Only with it; several: all."),
)


@groups.command()
@group_arguments
@creation_options(Group, defaults=False)
@_filter_options
@click.option(
    "--from",
    "begin",
    type=click.Choice(["start", "end"]),
    default="start",
    show_default=True,
    help="Begin with the oldest message, or with the next one.",
)
@if_missing_option
@common_options
def create(
    topic: str,
    name: str,
    tags: Sequence[str],
    headers: Sequence[str],
    begin: str,
    if_missing: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Create the group NAME on TOPIC.

    What is not given comes from the settings: EMS_TIMEOUT_S, EMS_LADDER, EMS_MAX_ATTEMPTS.
    """
    stream = open_stream()
    admin = stream.admin()
    values = changes_of({key: getattr(stream.settings, key, None) for key in given}) | changes_of(given)
    values |= {"filter": _filter(tags, headers), "from_start": begin == "start"}
    group = create_or_get(
        lambda: admin.create_group(topic, name, **values), lambda: admin.group(topic, name), if_missing
    )
    print_record(_about(topic, group), as_json)


@groups.command()
@group_arguments
@change_options(Group)
@_filter_options
@click.option("--no-filter", is_flag=True, help="All messages again.")
@skip_options
@click.option("--no-skip", is_flag=True, help="Skip nothing any more.")
@common_options
def change(
    topic: str,
    name: str,
    tags: Sequence[str],
    headers: Sequence[str],
    no_filter: bool,
    no_skip: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Change settings of the group NAME on TOPIC; the others keep their values.

    A pause acts at once; running workers take a new timeout, ladder, number of attempts or filter at their next
    start.
    """
    wanted = skip_policy_of(given)
    if no_skip and wanted:
        raise click.UsageError("Give either --no-skip, or --skip-lag and --skip-older-than.")
    changes = changes_of(given)
    if no_filter and (tags or headers):
        raise click.UsageError("Give either --no-filter, or --tag and --header.")
    if no_filter or tags or headers:
        changes["filter"] = _filter(tags, headers)
    if not (changes or wanted or no_skip):
        raise click.UsageError("Nothing to change; name at least one setting.")
    admin = open_stream().admin()
    group = admin.change_group(topic, name, **changes) if changes else admin.group(topic, name)
    if wanted or no_skip:
        admin.backlogs.set_policy(topic, name, wanted)
    print_record(_about(topic, group, admin.backlogs.policies().get(group.id)), as_json)


@groups.command()
@group_arguments
@click.option(
    "--to",
    required=True,
    metavar="PLACE",
    help="earliest, latest, an offset, -N for the last N messages, or a time like 2026-01-31T12:00 (UTC).",
)
@click.option("--partition", type=PARTITION, help="Only this partition.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@yes_option
@common_options
def reset(topic: str, name: str, to: str, partition: int | None, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Move the cursor of the group NAME of TOPIC: to skip messages, or to run them again.

    Workers may go on meanwhile, and no other group is affected. What is skipped is written down in ems_skip.
    """
    admin = open_stream().admin()
    moves = admin.reset_group(topic, name, to, partition=partition, dry_run=True)
    if not dry_run:
        skipped, again = sum(move.skipped for move in moves), sum(move.again for move in moves)
        confirm(f"Reset group {name!r} of topic {topic!r}: skip {skipped} and run {again} again?", yes)
        moves = admin.reset_group(topic, name, to, partition=partition)
    rows = [asdict(move) | {"skipped": move.skipped, "again": move.again} for move in moves]
    print_rows(rows, ["partition", "cursor", "to", "skipped", "again"], as_json, "The topic has no partition.")


@groups.command()
@group_arguments
@click.option("--keep", "skip_lag", type=NONE_OR_MORE, help="All but the newest n messages of each partition.")
@duration_option("--older-than", "skip_older_s", help="Only older messages")
@below_option
@click.option("--partition", type=PARTITION, help="Only this partition.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@yes_option
@common_options
def skip(topic: str, name: str, partition: int | None, dry_run: bool, yes: bool, as_json: bool, **given: Any) -> None:
    """Skip unclaimed messages that the group NAME of TOPIC would run too late.

    A message is skipped if it meets all of --keep, --older-than and --below-priority that are given. What is claimed or
    waits for a retry is still run. Skipped messages are counted and recorded in ems_skip. `ems groups change
    --skip-lag` lets the beat skip continuously.
    """
    policy = skip_policy_of(given)
    if not policy:
        raise click.UsageError("Name the messages to skip: --keep, --older-than, or both; --keep 0 skips everything.")
    backlogs = open_stream().admin().backlogs
    skips = backlogs.skip(topic, name, policy, partition=partition, dry_run=True)
    if not dry_run:
        count = sum(skip.count for skip in skips)
        confirm(f"Skip {counted(count, 'message')} of topic {topic!r} in group {name!r}?", yes)
        skips = backlogs.skip(topic, name, policy, partition=partition)
    rows = [asdict(skip) | {"skipped": skip.count} for skip in skips]
    print_rows(rows, ["partition", "cursor", "to", "skipped"], as_json, "There is nothing to skip.")


@groups.command()
@group_arguments
@selection_options
@click.option("--all", "everything", is_flag=True, help="All that is kept.")
@click.option("--after", metavar="P/O", callback=read_after, help="Continue after this place.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@yes_option
@common_options
def replay(
    topic: str,
    name: str,
    everything: bool,
    after: tuple[int, int] | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Run messages of TOPIC again in the group NAME, without publishing them again.

    No other group is affected, and workers may go on meanwhile. What is LIVE (running, or waiting to be run) or
    UNCLAIMED is run anyway, and not doubled. The rest is run AGAIN in the order of offsets, with a fresh ladder; dead
    letters among it are taken away. If it is interrupted, --after continues it.
    """
    from emsworker.admin import Selection

    selection = selection_of(given)
    if everything == (selection != Selection()):
        raise click.UsageError("Name the messages (--from, --to, --key, --tag, --where), or give --all.")
    found = open_stream().admin().replay(topic, name, selection, after=after)
    if dry_run or not yes:
        with progress("Looking", found.length) as bar:
            planned = found.plan(lambda part: bar.update(len(part.offsets)))
        if dry_run:
            _print_replay(planned, as_json)
            return
        confirm(
            f"Run {counted(sum(one.again for one in planned), 'message')} again in group {name!r} of topic {topic!r}?",
            yes,
        )
    _print_replay(_run_replay(found), as_json)


def _run_replay(found: Replay) -> list[Replayed]:
    done = ""
    try:
        with progress("Replaying", found.length) as bar:

            def note(part: Replayed) -> None:
                nonlocal done
                done = "{}/{}".format(*part.last)
                bar.update(len(part.offsets))

            return found.run(note)
    except BaseException:
        if done:
            click.echo(f"Stopped; everything up to {done} is replayed, --after {done} continues from there.", err=True)
        raise


def _print_replay(found: list[Replayed], as_json: bool) -> None:
    rows = []
    for one in found:
        counts = asdict(one)
        del counts["offsets"]
        partition, hi = one.last
        rows.append({"partition": partition, "lo": one.offsets.start, "hi": hi, **counts})
    columns = ["partition", "lo", "hi", "chosen", "again", "live", "unclaimed", "unreadable"]
    print_rows(rows, columns, as_json, "There is no such message.")


@groups.command()
@group_arguments
@click.option("--force", is_flag=True, help="Delete it even if it has live claims or retries, which are lost.")
@yes_option
@common_options
def delete(topic: str, name: str, force: bool, yes: bool, as_json: bool) -> None:
    """Delete the group NAME of TOPIC with its cursors, its log and its dead letters; messages stay.

    Refused while it has live claims or messages waiting for a retry, unless forced.
    """
    admin = open_stream().admin()
    admin.group(topic, name)
    confirm(
        f"Delete group {name!r} of topic {topic!r}, with {counted(admin.dead.count(topic, name), 'dead letter')}?", yes
    )
    admin.delete_group(topic, name, force=force)
    print_done({"topic": topic, "group": name, "deleted": True}, f"Deleted group {name} of topic {topic}.", as_json)
