"""Archiving: one archiver per topic, checksums to compare copies, and deletion of what was copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from emsworker.arrow.manifest import Sum
from emsworker.extending.database import Database, Session, Sql, Statements
from emsworker.extending.errors import EmsError
from emsworker.extending.stream import retention
from emsworker.extending.values import OffsetRange

_SQL = Statements(__name__)
_SUM_OFFSETS = 50_000  # per statement, which takes half a second
_DELETE_OFFSETS = 2_000


class ArchiveBusy(EmsError):
    """Another archiver works on the topic, or this archiver has lost its lock."""


class Lock:
    """An archiver's lock on a topic, on a connection of its own, held until it is closed or its process dies.

    Raises:
        ArchiveBusy: another archiver holds the lock, and has not released it within 5 s.
    """

    def __init__(self, database: Database, topic_id: int, topic: str) -> None:
        self._session, self._topic = database.session(), topic
        self._args = {"topic_id": topic_id}
        if self._session.rows(_SQL.lock, self._args)[0][0] != 1:
            self._session.close()
            raise ArchiveBusy(f"topic {topic!r} is being archived by another job; wait until it ends")

    def check(self) -> None:
        """Raise ArchiveBusy if the connection was lost, and with it the lock."""
        if self._session.rows(_SQL.check_lock, self._args)[0][0] != 1:
            raise ArchiveBusy(f"the connection that held topic {self._topic!r} was lost; run the job again")

    def close(self) -> None:
        """Release the lock."""
        self._session.close()


def get_place(session: Session, topic_id: int, partition: int) -> tuple[int, int] | None:
    """Return a partition's log start offset, and the offset below which it is deleted; ``None`` if it is gone."""
    rows = session.rows(_SQL.get_place, {"topic_id": topic_id, "partition": partition})
    return (int(rows[0][0]), int(rows[0][1])) if rows else None


def sum_messages(database: Database, offsets: OffsetRange) -> Sum:
    """Count the rows of a range and sum their hashes, on the server."""
    total = Sum()
    for part in offsets.steps(_SUM_OFFSETS):
        total += database.call(partial(_sum, statement=_SQL.sum_messages, args=part.args))
    return total


def sum_claims(database: Database, group_id: int, offsets: OffsetRange) -> Sum:
    """Count and sum the done claims of a group that end below ``offsets.end``, wherever they begin."""
    return database.call(lambda s: _sum(s, _SQL.sum_claims, offsets.args | {"group_id": group_id}))


def sum_attempts(database: Database, group_id: int, offsets: OffsetRange, late: Sequence[int] = ()) -> Sum:
    """Count and sum the attempts of a range and of the ``late`` offsets below it, except those of dead letters."""
    args = offsets.args | {"group_id": group_id}
    total = database.call(partial(_sum, statement=_SQL.sum_attempts, args=args))
    if late:
        total += database.call(partial(_sum, statement=_SQL.sum_attempts_at, args=args | {"offsets": list(late)}))
    return total


def first_claim(session: Session, group_id: int, partition: int, default: int) -> int:
    """Return the offset at which a group's first claim in the log begins, or ``default`` if there is none."""
    (lo,) = session.rows(_SQL.first_claim, {"group_id": group_id, "partition": partition})[0]
    return default if lo is None else int(lo)


def list_left(session: Session, topic_id: int, places: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Return group, partition and offset of the places of :func:`retention.list_restored` that have attempts."""
    found: list[tuple[int, int, int]] = []
    for partition in sorted({partition for partition, _ in places}):
        offsets = [offset for number, offset in places if number == partition]
        args = {"topic_id": topic_id, "partition": partition, "offsets": offsets}
        found += [(int(g), int(p), int(o)) for g, p, o in session.rows(_SQL.list_left_attempts, args)]
    return found


def _sum(session: Session, statement: Sql, args: dict[str, Any]) -> Sum:
    rows, checksum = session.rows(statement, args)[0]
    return Sum(int(rows), int(checksum))


def delete_claims(session: Session, group_id: int, partition: int, keys: Sequence[tuple[int, int]]) -> int:
    """Delete claims by ``(lo, claim_id)``; idempotent."""
    args = {"group_id": group_id, "partition": partition}
    values = {"los": sorted({lo for lo, _ in keys}), "claim_ids": [claim_id for _, claim_id in keys]}
    return session.change(_SQL.delete_claims, args | values)


def delete_attempts(session: Session, group_id: int, partition: int, keys: Sequence[tuple[int, str]]) -> int:
    """Delete attempts by offset and end time, as the server writes it; idempotent."""
    args = {"group_id": group_id, "partition": partition}
    values = {"offsets": sorted({offset for offset, _ in keys}), "ended": [ended for _, ended in keys]}
    return session.change(_SQL.delete_attempts, args | values)


def delete_messages(database: Database, offsets: OffsetRange) -> Iterator[int]:
    """Delete a range below the log start offset in chunks, and yield the size of each; idempotent."""
    for part in offsets.steps(_DELETE_OFFSETS):
        database.call(partial(retention.delete_messages, offsets=part))
        yield len(part)
