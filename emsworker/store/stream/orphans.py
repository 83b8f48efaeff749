"""Orphans: rows of a topic or of a partition that does not exist, in the outbox and in the stream.

EMS writes none, but whoever may insert messages may insert them by plain SQL with any number, and nothing else would
ever read or delete them. They are found between the numbers that exist, by an index dive for each gap.

What was never a message of EMS is set aside as a refused row of ``ems_publish``; what a deletion of its topic has left
behind is deleted. Rows of a topic that is gone although it was not deleted are left alone: somebody has deleted its row
in ``ems_topic``, and can put it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emsworker.core.batches import in_batches
from emsworker.core.partitioner import partition_number
from emsworker.core.priority import levels_of
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Part, Sql, Statements, column, fill, fill_rows, join, literal
from emsworker.store.stream import outbox
from emsworker.store.stream.columns import PLAIN

_SQL = Statements(__name__, **PLAIN)
_DIVES = 200  # in one statement
_ROWS, _BYTES = 100, 16 << 20  # in one transaction
_LOST = 20  # topics
_TOPICS, _PARTITIONS = 1 << 32, 1 << 16  # numbers that the columns hold

Gap = tuple[int, int]


@dataclass(frozen=True)
class OrphanRows:
    """Rows that belong nowhere.

    Attributes:
        partition: of rows of the stream; ``None`` for rows of the outbox.
    """

    topic_id: int
    partition: int | None = None

    def __str__(self) -> str:
        table, part = ("ems_outbox", "") if self.partition is None else ("ems_message", f", partition {self.partition}")
        return f"{table}: topic_id {self.topic_id}{part}"


@dataclass(frozen=True)
class Cleared:
    """Outcome of one transaction.

    Attributes:
        rows: how many rows are no longer where they were.
        why: the error that they are kept with; ``None`` if they were deleted.
    """

    rows: int
    why: str | None = None


@dataclass(frozen=True)
class FoundOrphans:
    """The first orphans of each gap.

    Attributes:
        orphans: rows to clear.
        lost: ids of topics that were not deleted, and whose rows in ``ems_topic`` are gone.
    """

    orphans: list[OrphanRows]
    lost: set[int]


def find(session: Session) -> FoundOrphans:
    """Find the first orphans of each gap between topics and partitions that exist."""
    partitions = _partitions(session)
    foreign = [*_between(session, partitions), *_behind(session, partitions)]
    lost: set[int] = set()
    while True:  # those of a lost topic must not hide what lies behind them
        between = [{"low": low, "high": high} for low, high in gaps(partitions.keys() | lost, _TOPICS)]
        dives = (_SQL.first_topic_of_outbox, _SQL.first_topic_of_messages)
        found = [OrphanRows(*row) for dive in dives for row in _dive(session, dive, between)]
        more = {one.topic_id for one in found if _is_lost(session, one)}
        if not more or len(lost) >= _LOST:
            return FoundOrphans(found + foreign, lost)
        lost |= more


def gaps(numbers: Iterable[int], end: int) -> Iterator[Gap]:
    """Yield the bounds of what lies between some numbers, from 0 up to ``end``; the bounds themselves lie outside."""
    last = -1
    for number in (*sorted(numbers), end):
        if number > last + 1:
            yield last, number
        last = number


def _partitions(session: Session) -> dict[int, set[int]]:
    """Return the partitions of each topic: those that it has, and those whose row somebody has deleted."""
    numbers = {
        topic_id: {partition_number(level, one) for level in levels_of(priorities) for one in range(count)}
        for topic_id, count, priorities in session.rows(_SQL.list_topics)
    }
    for topic_id, partition in session.rows(_SQL.list_partitions):
        if topic_id in numbers:
            numbers[topic_id].add(partition)
    return numbers


def _between(session: Session, partitions: Mapping[int, set[int]]) -> Iterator[OrphanRows]:
    """Yield the first rows between the partitions of a topic: only one with priority levels has gaps there."""
    args = [
        {"topic_id": topic, "low": low, "high": high}
        for topic, numbers in partitions.items()
        for low, high in gaps(numbers, max(numbers))
    ]
    for row in _dive(session, _SQL.first_partition, args):
        yield OrphanRows(*row)


def _behind(session: Session, partitions: Mapping[int, set[int]]) -> Iterator[OrphanRows]:
    """Yield the last rows of the topics if they lie behind the filler of the last partition; one statement for all."""
    for topic_id, partition, is_filler in session.rows(_SQL.list_last):
        last = max(partitions.get(topic_id, (_PARTITIONS,)))
        if partition > last + 1 or (partition == last + 1 and not is_filler):
            yield OrphanRows(topic_id, partition)


def _dive(session: Session, dive: Sql, args: Sequence[dict[str, int]]) -> Iterator[tuple[int, ...]]:
    for first in range(0, len(args), _DIVES):
        yield from session.rows(join(" UNION ALL ", [fill(dive, one) for one in args[first : first + _DIVES]]))


def clear(session: Session, orphans: OrphanRows) -> Cleared:
    """Set at most a hundred rows aside, or delete them, and at most 16 MiB, in one transaction.

    Rows that others have locked are passed over. Nothing is done if they belong to a topic by now.
    """
    return session.transaction(lambda session: _clear(session, orphans))


def _is_lost(session: Session, orphans: OrphanRows) -> bool:
    name, existed, deleted_at, *_ = session.rows(_SQL.find_owner, _where(orphans))[0]
    return name is None and bool(existed) and deleted_at is None


def _where(orphans: OrphanRows) -> dict[str, Any]:
    return {"topic_id": orphans.topic_id, "partition": orphans.partition}


def _clear(session: Session, orphans: OrphanRows) -> Cleared:
    in_outbox, where = orphans.partition is None, _where(orphans)
    lock = _SQL.lock_outbox if in_outbox else _SQL.lock_messages
    locked = session.rows(lock, {**where, "limit": _ROWS})
    name, existed, _, settled, has_partition, follows = session.rows(_SQL.find_owner, where)[0]
    if (name is None and existed and not settled) or (name is not None and (in_outbox or has_partition)):
        return Cleared(0)
    if name is not None and follows:  # the filler of the partition before belongs there
        locked = tuple(row for row in locked if row[0])
    rows = [row for row, _ in next(in_batches(locked, lambda row: int(row[1]), _BYTES), [])]
    why = None if name is None and existed else _reason(orphans, name)
    if rows:
        _remove(session, orphans, rows, name or f"(topic_id {orphans.topic_id})", why)
    return Cleared(len(rows), why)


def _reason(orphans: OrphanRows, topic: str | None) -> str:
    if topic is None:
        return f"there is no topic with topic_id {orphans.topic_id}; look for who inserts rows beside EMS"
    why = f"topic {topic!r} has no partition {orphans.partition}"
    return f"{why}; delete the row, or, unless it is a call, retry it to send it by its key"


def _remove(session: Session, orphans: OrphanRows, rows: Sequence[Any], topic: str, why: str | None) -> None:
    template = _SQL.one_uid if orphans.partition is None else _SQL.one_offset
    name = "uid" if orphans.partition is None else "offset"
    parts: dict[str, Part] = {
        "rows": join(" UNION ALL ", fill_rows(template, {}, {name: column(rows)})),
        "topic_id": orphans.topic_id,
        "topic": literal(topic),
        "partition": literal(orphans.partition),
        "error": literal(why),
    }
    if why is not None:
        session.execute(fill(_SQL.refuse_outbox if orphans.partition is None else _SQL.refuse_messages, parts))
    if orphans.partition is None:
        for text in outbox.delete_texts(orphans.topic_id, rows):
            session.execute(text)
    else:
        session.execute(fill(_SQL.delete_messages, parts))
