"""Pages of lists for people: delayed messages, retries, running messages, rows of a topic, and dead letters.

Every page begins after a place of an index (keyset paging), so that the last page costs what the first one does. A list
over many topics, groups or classes is merged from one ordered range of each: first one row of each is read, and then
the page, of those only whose first rows belong to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from emsworker.core.run import Progress
from emsworker.core.times import utc
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Sql, Statements

_SQL = Statements(__name__, headers="NULL", last_error="NULL", dead_error="NULL, NULL")  # for the role viewer
_FULL_SQL = Statements(
    __name__,
    headers="LEFT(headers, 65537)",  # one more byte than a viewer decodes
    last_error="RIGHT(r.last_error, 2000)",
    dead_error="LEFT(reason, 500), RIGHT(error, 2000)",
)

_LAST_UID = b"\xff" * 16
_PAST_PARTITIONS = 1 << 16
_PAST_OFFSETS = (1 << 64) - 1
START_OF_TIME, END_OF_TIME = "1970-01-01 00:00:00.000000", "9999-12-31 23:59:59.999999"

_BEFORE_LANES = "1000-01-01 00:00:00.000000"  # see fair.sql

Row = tuple[Any, ...]


def _merged(
    session: Session,
    sources: Sequence[tuple[Sql, Mapping[str, Any]]],
    limit: int,
    key: Callable[[Row], Any],
    newest: bool,
) -> list[Row]:
    """Return the first rows of several ordered sources together.

    Args:
        sources: statements that return their rows in order, each with its arguments but the limit.
        key: the order of the rows over all sources.
        newest: the order is from the highest key to the lowest.
    """
    if len(sources) > 1:
        heads = [(key(rows[0]), source) for source, rows in _read(session, sources, 1) if rows]
        heads.sort(key=lambda one: one[0], reverse=newest)
        sources = [source for _, source in heads[:limit]]
    found = [row for _, rows in _read(session, sources, limit) for row in rows]
    return sorted(found, key=key, reverse=newest)[:limit]


def _read(
    session: Session, sources: Sequence[tuple[Sql, Mapping[str, Any]]], limit: int
) -> Iterator[tuple[tuple[Sql, Mapping[str, Any]], Sequence[Row]]]:
    if not sources:
        return
    packet = session.packet()
    for statement, args in sources:
        packet.add(statement, {**args, "limit": limit})
    for source, result in zip(sources, packet.send(), strict=True):
        yield source, result.rows


# -- where there is anything -------------------------------------------------------------------------------------------


def delayed_topics(session: Session) -> set[int]:
    """Return the ids of the topics that have delayed messages."""
    return {int(topic_id) for (topic_id,) in session.rows(_SQL.list_delayed_topics)}


def retrying_groups(session: Session) -> set[int]:
    """Return the ids of the groups that have retries."""
    return {int(group_id) for (group_id,) in session.rows(_SQL.list_retrying_groups)}


def running_groups(session: Session) -> set[int]:
    """Return the ids of the groups of which clients run something."""
    return {int(group_id) for (group_id,) in session.rows(_SQL.list_running_groups)}


def dead_groups(session: Session) -> set[int]:
    """Return the ids of the groups that have dead letters."""
    return {int(group_id) for (group_id,) in session.rows(_SQL.list_dead_groups)}


# -- delayed -----------------------------------------------------------------------------------------------------------


class DelayedRow(NamedTuple):
    """A message of the outbox; times as the server writes them."""

    topic_id: int
    due_at: str
    uid: bytes
    created_at: str
    partition: int | None
    key: bytes | None
    tag: bytes | None
    level: int
    producer_id: str
    headers: bytes | None


class DelayedPlace(NamedTuple):
    """The place of a message in the list of delayed messages."""

    due_at: str
    topic_id: int
    uid: bytes


def list_delayed(
    session: Session, topic_ids: Sequence[int], after: DelayedPlace | None, limit: int, details: bool
) -> list[DelayedRow]:
    """Return delayed messages, the next due first.

    Args:
        details: read the headers too.
    """
    after = after or DelayedPlace(START_OF_TIME, 0, b"")

    def source(topic_id: int) -> tuple[Sql, dict[str, Any]]:
        # Of an equal time, topics before that of the place have been listed, and those after it have not.
        uid = after.uid if topic_id == after.topic_id else _LAST_UID if topic_id < after.topic_id else b""
        return _FULL_SQL.list_delayed if details else _SQL.list_delayed, {
            "topic_id": topic_id,
            "due_at": after.due_at,
            "uid": uid,
        }

    rows = _merged(session, list(map(source, topic_ids)), limit, lambda row: (row[1], row[0], row[2]), False)
    return [DelayedRow(*row) for row in rows]


def find_delayed(session: Session, topic_ids: Collection[int], uid: bytes, details: bool) -> list[DelayedRow]:
    """Return a message from the outbox of each of the topics in which it waits; see :func:`list_delayed`."""
    if not topic_ids:
        return []
    statement = _FULL_SQL.find_delayed if details else _SQL.find_delayed
    return [DelayedRow(*row) for row in session.rows(statement, {"topic_ids": sorted(topic_ids), "uid": uid})]


# -- retries -----------------------------------------------------------------------------------------------------------


class WaitingRow(NamedTuple):
    """A message that waits for its next attempt."""

    group_id: int
    due_at: str
    partition: int
    offset: int
    attempt: int
    key: bytes | None
    last_error: str | None


class RetryPlace(NamedTuple):
    """The place of a message in the list of retries."""

    due_at: str
    group_id: int
    partition: int
    offset: int


def list_retries(
    session: Session, group_ids: Sequence[int], after: RetryPlace | None, limit: int, details: bool
) -> list[WaitingRow]:
    """Return messages that wait for a retry, the next due first, those that are blocked last.

    Args:
        details: read the last errors too.
    """
    after = after or RetryPlace(_BEFORE_LANES, 0, 0, 0)

    def source(group_id: int) -> tuple[Sql, dict[str, Any]]:
        place = (after.partition, after.offset)
        if group_id != after.group_id:
            place = (_PAST_PARTITIONS, 0) if group_id < after.group_id else (-1, 0)
        args = {"group_id": group_id, "due_at": after.due_at, "partition": place[0], "offset": place[1]}
        return (_FULL_SQL.list_retries if details else _SQL.list_retries), args

    rows = _merged(session, list(map(source, group_ids)), limit, lambda row: (row[1], row[0], row[2], row[3]), False)
    return [WaitingRow(*row) for row in rows]


class Outline(NamedTuple):
    """Id, time and perhaps headers of a message of the stream."""

    uid: bytes
    born_at: str
    headers: bytes | None


def get_outlines(session: Session, places: Sequence[tuple[int, int, int]], details: bool) -> list[Outline | None]:
    """Return the message at each place (topic id, partition, offset), ``None`` if it is gone.

    Args:
        details: read the headers too.
    """
    if not places:
        return []
    packet = session.packet()
    for topic_id, partition, offset in places:
        packet.add(
            (_FULL_SQL.get_outline if details else _SQL.get_outline),
            {"topic_id": topic_id, "partition": partition, "offset": offset},
        )
    return [Outline(*result.rows[0]) if result.rows else None for result in packet.send()]


# -- running -----------------------------------------------------------------------------------------------------------


class RunningRow(NamedTuple):
    """A live claim: ``offset`` is its first unfinished message, of which ``left`` are held."""

    group_id: int
    partition: int
    lo: int
    claim_id: int
    source: str
    client_id: str
    client: str | None
    claimed_at: str
    progress_at: str
    deadline_at: str
    hi: int
    offset: int | None
    left: int


class RunningPlace(NamedTuple):
    """The place of a claim in the list of running messages."""

    group_id: int
    partition: int
    lo: int
    claim_id: int


def list_running(
    session: Session, group_ids: Sequence[int], after: RunningPlace | None, limit: int
) -> list[RunningRow]:
    """Return live claims of some groups, in the order of group, partition and offset."""
    if not group_ids:
        return []
    place = (after or RunningPlace(0, 0, 0, 0))._asdict()
    rows = session.rows(_SQL.list_running, place | {"group_ids": list(group_ids), "limit": limit})
    return [RunningRow(*row) for row in rows]


def get_running(
    session: Session, claims: Sequence[tuple[int, RunningRow]]
) -> list[tuple[int, bytes, Progress | None] | None]:
    """Return the running message of each claim, which comes with its topic id: offset, uid and last report."""
    if not claims:
        return []
    packet = session.packet()
    for topic_id, row in claims:
        first = row.offset if row.offset is not None else _PAST_OFFSETS
        where = {"topic_id": topic_id, "group_id": row.group_id, "partition": row.partition, "offset": first}
        packet.add(_SQL.get_running, where | {"hi": first if row.source == "retry" else row.hi})
    return [_running(result.rows[0]) if result.rows else None for result in packet.send()]


def _running(row: Row) -> tuple[int, bytes, Progress | None]:
    offset, uid, fraction, text, attempt, client_id, reported_at = row
    if reported_at is None:
        return offset, uid, None
    told = Progress(None if fraction is None else float(fraction), text, attempt, client_id, utc(reported_at))
    return offset, uid, told


# -- rows of a topic ---------------------------------------------------------------------------------------------------


class OutlineRow(NamedTuple):
    """A row of a partition without its headers and its body; a tombstone has no uid."""

    partition: int
    offset: int
    uid: bytes | None
    key: bytes | None
    tag: bytes | None
    size: int
    born_at: str
    producer_id: str
    kind: str


def list_messages(
    session: Session, topic_id: int, partitions: Sequence[int], after: tuple[int, int] | None, limit: int, newest: bool
) -> list[OutlineRow]:
    """Return rows of some partitions of a topic, in the order of the stream or from its end."""
    found: list[OutlineRow] = []
    statement, begin = (_SQL.list_newest_messages, _PAST_OFFSETS) if newest else (_SQL.list_messages, 0)
    for partition in sorted(partitions, reverse=newest):
        if after is not None and (partition > after[0] if newest else partition < after[0]):
            continue
        offset = after[1] if after is not None and partition == after[0] else begin
        where = {"topic_id": topic_id, "partition": partition, "offset": offset, "limit": limit - len(found)}
        found += [OutlineRow(*row) for row in session.rows(statement, where)]
        if len(found) >= limit:
            break
    return found


# -- dead letters ------------------------------------------------------------------------------------------------------


class DeadEntryRow(NamedTuple):
    """A dead letter in a list."""

    group_id: int
    dead_at: str
    partition: int
    offset: int
    uid: bytes
    key: bytes | None
    tag: bytes | None
    born_at: str
    attempts: int
    task: str
    error_type: str
    reason: str | None
    error: str | None


class DeadPlace(NamedTuple):
    """The place of a dead letter in a list, newest first."""

    dead_at: str
    group_id: int
    partition: int
    offset: int


class LetterClass(NamedTuple):
    """The dead letters of one group that have one task and one class of error."""

    group_id: int
    task: str
    error_type: str


@dataclass(frozen=True)
class Within:
    """A span of time, both ends included, as the server writes times."""

    since: str = START_OF_TIME
    until: str = END_OF_TIME

    @property
    def args(self) -> dict[str, str]:
        """The ends as arguments of a statement."""
        return {"since": self.since, "until": self.until}


def list_dead(
    session: Session,
    sources: Sequence[int] | Sequence[LetterClass],
    within: Within,
    after: DeadPlace | None,
    limit: int,
    details: bool,
) -> list[DeadEntryRow]:
    """Return dead letters, the newest first.

    Args:
        sources: ids of groups, or classes.
        details: read the reasons and the ends of the errors too.
    """
    after = after or DeadPlace(within.until, _PAST_OFFSETS, 0, 0)

    def source(one: int | LetterClass) -> tuple[Sql, dict[str, Any]]:
        group_id = one if isinstance(one, int) else one.group_id
        place = (after.partition, after.offset)
        if group_id != after.group_id:
            place = (_PAST_PARTITIONS, 0) if group_id < after.group_id else (0, 0)
        args = {"group_id": group_id, "since": within.since, "dead_at": after.dead_at}
        args |= {"partition": place[0], "offset": place[1]}
        if isinstance(one, int):
            return (_FULL_SQL.list_dead if details else _SQL.list_dead), args
        return (_FULL_SQL.list_dead_of_class if details else _SQL.list_dead_of_class), args | {
            "task": one.task,
            "error_type": one.error_type,
        }

    rows = _merged(session, list(map(source, sources)), limit, lambda row: (row[1], row[0], row[2], row[3]), True)
    return [DeadEntryRow(*row) for row in rows]


def newest_groups(session: Session, within: Within, most: int) -> list[int]:
    """Return the groups of the newest dead letters within a time: those of ``most`` letters are of no other one."""
    return [group_id for (group_id,) in _newest(session.rows(_SQL.list_newest_groups, within.args), within, most)]


def newest_classes(
    session: Session, within: Within, most: int, wanted: Callable[[LetterClass], bool]
) -> list[LetterClass]:
    """Return the classes of the newest dead letters within a time; see :func:`newest_groups`.

    Args:
        wanted: leaves classes out.
    """
    rows = session.rows(_SQL.list_newest_classes, within.args)
    return [LetterClass(*one) for one in _newest([row for row in rows if wanted(LetterClass(*row[:3]))], within, most)]


def _newest(rows: Sequence[Row], within: Within, most: int) -> list[Row]:
    """Return the sources of the newest letters, and all with one at the very end, which may be of earlier pages."""
    ordered = sorted(rows, key=lambda row: (row[-1], *row[:-1]), reverse=True)
    tied = sum(row[-1] == within.until for row in ordered)
    return [tuple(row[:-1]) for row in ordered[: tied + most]]


def list_classes(session: Session, group_ids: Sequence[int], most: int) -> list[LetterClass]:
    """Return the classes of the dead letters of some groups, in order, at most ``most`` of each group.

    Each round asks every group for its next class, which costs one dive into the index, however many letters there are.
    """
    found: list[LetterClass] = []
    last: list[LetterClass | int] = list(group_ids)
    for _ in range(most):
        if not last:
            break
        packet = session.packet()
        for one in last:
            if isinstance(one, int):
                packet.add(_SQL.first_class, {"group_id": one})
            else:
                packet.add(_SQL.next_class, one._asdict())
        last = [LetterClass(*result.rows[0]) for result in packet.send() if result.rows]
        found += [one for one in last if isinstance(one, LetterClass)]
    return sorted(found)


def count_classes(
    session: Session, classes: Sequence[LetterClass], within: Within, most: int
) -> list[tuple[int, str | None]]:
    """Return the number of dead letters of each class within a time, counted up to ``most``, and the newest's time."""
    if not classes:
        return []
    packet = session.packet()
    for one in classes:
        packet.add(_SQL.count_class, one._asdict() | within.args | {"most": most})
    return [(int(result.rows[0][0]), result.rows[0][1]) for result in packet.send()]


class NamedCount(NamedTuple):
    """The number of dead letters of one class with the names of its topic and group, and the time of the newest."""

    topic: str
    group: str
    task: str
    error_type: str
    letters: int
    latest: str


def count_classes_of_many(session: Session, group_ids: Collection[int], within: Within) -> list[NamedCount]:
    """Count the dead letters of many groups by class, in one statement that reads each of them."""
    args = {"group_ids": sorted(group_ids)} | within.args
    return [NamedCount(*row) for row in session.rows(_SQL.count_classes_of_many, args)] if group_ids else []
