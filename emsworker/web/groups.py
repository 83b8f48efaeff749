"""Groups: the list, one group with its partitions, and what a change of its place would do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from emsworker.extending.administration import GroupState, Selection, SkipPolicy
from emsworker.extending.errors import AccessDenied, ConfigError, EmsError, Problem, UnknownGroup
from emsworker.extending.settings import settings_of
from emsworker.extending.stream import GroupChoice
from emsworker.extending.values import counted, parse_duration
from emsworker.web.overview import HOURS, MOST_LINES, charts_of, hours_of, lines_of
from emsworker.web.page import View, Visit, read_number

PLAN_SCAN = 500_000
_PLAN_S = 8.0  # less than a page may take
_CHOICES = {
    GroupState.WORKING.value: GroupChoice.WAITING,
    GroupState.NO_CONSUMER.value: GroupChoice.WAITING,
    GroupState.PAUSED.value: GroupChoice.PAUSED,
    GroupState.IDLE.value: GroupChoice.IDLE,
}


def groups(visit: Visit) -> Response:
    """List the groups with their lag."""
    wanted, state = visit.asked("q") or "", visit.asked("state")
    standing = visit.shared.standing(MOST_LINES, wanted, _CHOICES.get(state or ""))
    lines = [line for line in lines_of(visit.shared, standing.groups) if state in (None, line.state)]
    return visit.render(
        "groups.html",
        lines=lines,
        count=standing.count if lines else 0,
        age_s=standing.age_s,
        wanted=wanted,
        state=state,
        states=list(_CHOICES),
    )


def group(visit: Visit) -> Response:
    """Show a group: its numbers, charts, partitions, limits and settings."""
    topic, name, hours = visit.place("topic"), visit.place("group"), hours_of(visit)
    found = visit.shared.admin.group(topic, name)
    lag = next((one for one in visit.shared.lags(topic, name) if one.group.id == found.id), None)
    if lag is None:
        raise UnknownGroup(f"group {name!r} of topic {topic!r} was created or deleted just now; look again")
    try:
        limit, policies = visit.shared.admin.limits.get(topic, name), visit.shared.admin.backlogs.policies()
    except AccessDenied:
        limit, policies = None, {}
    try:
        charts = charts_of(visit.shared.series(topic, name, hours))
    except EmsError:  # deleted meanwhile
        charts = []
    return visit.render(
        "group.html",
        topic=lag.topic,
        group=found,
        line=lines_of(visit.shared, [lag])[0],
        limit=limit,
        policy=policies.get(found.id),
        settings=[(key, getattr(found, key), one.help) for key, one in settings_of(type(found)).items()],
        charts=charts,
        hours=hours,
        all_hours=HOURS,
    )


@dataclass(frozen=True)
class Plan:
    """Change of a group's place, planned or to be made.

    Attributes:
        kind: ``reset``, ``skip`` or ``replay``.
        given: the fields that were filled in.
        rows: what would happen in each partition, by the names of the columns.
        count: the number of messages that would be skipped or run again.
        sentence: the plan as a sentence.
    """

    kind: str
    given: dict[str, str]
    rows: Sequence[dict[str, Any]]
    count: int
    sentence: str


def planned(visit: Visit, admin: Any, kind: str, given: dict[str, str]) -> Plan:
    """Plan a change of a group's place; nothing is changed.

    Args:
        admin: of the database to plan on.
        given: the fields of the form.

    Raises:
        UnknownTopic, UnknownGroup, ConfigError, PredicateError: the fields are wrong.
    """
    topic, name = visit.place("topic"), visit.place("group")
    partition = read_number("partition", given.get("partition"), None, 65535)
    if kind == "reset":
        moves = admin.reset_group(topic, name, _needed(given, "to"), partition=partition, dry_run=True)
        rows = [
            {"partition": one.partition, "cursor": one.cursor, "to": one.to, "skipped": one.skipped, "again": one.again}
            for one in moves
        ]
        skipped, again = sum(one.skipped for one in moves), sum(one.again for one in moves)
        return Plan(
            kind,
            given,
            rows,
            skipped + again,
            f"{counted(skipped, 'message')} to skip, {counted(again, 'message')} to run again.",
        )
    if kind == "skip":
        skips = admin.backlogs.skip(topic, name, policy_of(given), partition=partition, dry_run=True)
        rows = [{"partition": one.partition, "cursor": one.cursor, "to": one.to, "skipped": one.count} for one in skips]
        count = sum(one.count for one in skips)
        return Plan(kind, given, rows, count, f"{counted(count, 'message')} to skip: this group never runs them.")
    replay = admin.replay(topic, name, selection_of(given))
    if replay.length > PLAN_SCAN:
        span = counted(replay.length, "offset")
        fix = f"covers {span}, more than are looked at here; narrow it, or use `ems groups replay`"
        raise ConfigError([Problem("selection", "this", fix)])
    try:
        parts = replay.plan(within_s=_PLAN_S)
    except TimeoutError:
        fix = f"takes more than {_PLAN_S:g} s to look at; narrow it, or use `ems groups replay`"
        raise ConfigError([Problem("selection", "this", fix)]) from None
    counts = ("chosen", "again", "live", "unclaimed")
    rows = [
        {"partition": one.last[0], "from": one.offsets.start, "to": one.last[1]}
        | {name: getattr(one, name) for name in counts}
        for one in parts
    ]
    count = sum(one.again for one in parts)
    return Plan(
        kind,
        given,
        rows,
        count,
        f"{counted(count, 'message')} to run again; those that are live or unclaimed run anyway.",
    )


FIELDS = {
    "reset": ("to", "partition"),
    "skip": ("keep", "older", "below", "partition"),
    "replay": ("from", "to", "key", "tag", "where", "partition", "everything"),
}


def policy_of(given: dict[str, str]) -> SkipPolicy:
    """Return the policy of a skip.

    Raises:
        ConfigError: a field cannot be read.
    """
    older = given.get("older")
    try:
        older_s = None if older is None else parse_duration(older)
    except ValueError as error:
        raise ConfigError([Problem("older", repr(older), str(error))]) from None
    keep, below = read_number("keep", given.get("keep")), read_number("below", given.get("below"), None, 9)
    return SkipPolicy(keep, older_s, below)


def selection_of(given: dict[str, str]) -> Selection:
    """Return the selection of a replay.

    Raises:
        ConfigError: nothing is selected, and not everything is wanted.
    """
    chosen = Selection(
        start=given.get("from"),
        end=given.get("to"),
        partition=read_number("partition", given.get("partition"), None, 65535),
        keys=(given["key"],) if "key" in given else (),
        tags=(given["tag"],) if "tag" in given else (),
        where=given.get("where"),
    )
    if chosen == Selection() and "everything" not in given:
        raise ConfigError([Problem("selection", "nothing", "name the messages, or tick 'all that is kept'")])
    return chosen


def _needed(given: dict[str, str], name: str) -> str:
    if name not in given:
        fix = "give earliest, latest, an offset, -n for the last n, or a time like 2026-01-31T12:00"
        raise ConfigError([Problem(name, "nothing", fix)])
    return given[name]


def move(visit: Visit) -> Response:
    """Plan a reset, a skip or a replay, and show what it would do before it can be confirmed."""
    kind = visit.place("kind")
    if kind not in FIELDS:
        return visit.error(404, "There is no such page", "A group can be reset, can skip, and can replay.")
    topic, name = visit.place("topic"), visit.place("group")
    visit.shared.admin.group(topic, name)
    given = {field: text for field in FIELDS[kind] if (text := visit.asked(field)) is not None}
    plan, problem = None, None
    if visit.asked("plan") is not None:
        try:
            plan = planned(visit, visit.shared.admin, kind, given)
        except ConfigError as error:
            problem = str(error)
    return visit.render(
        "move.html",
        400 if problem else 200,
        kind=kind,
        topic=topic,
        group=name,
        given=given,
        shown={field: given.get(field) for field in FIELDS[kind]},
        plan=plan,
        problem=problem,
    )


PAGES = (
    View("/groups", groups),
    View("/groups/{topic}/{group}", group),
    View("/groups/{topic}/{group}/{kind}", move, "reader", decodes=True),
)
