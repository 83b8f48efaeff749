"""Dead letters: list, requeue and delete them.

A dead letter is in one place only: requeuing moves it to ``ems_retry`` in one transaction, so a crash at any line
leaves it either dead or due, never both and never neither.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from emsworker.core.ids import decode_key
from emsworker.core.model import Group, Order
from emsworker.core.times import utc
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements
from emsworker.store.groups.cursors import hold
from emsworker.store.stream.columns import MESSAGE

_SQL = Statements(__name__, **MESSAGE)
CHUNK = 500

Place = tuple[int, int]
"""A partition and an offset."""


@dataclass(frozen=True)
class DeadRow:
    """A dead letter in a list, without its body."""

    group_id: int
    partition: int
    offset: int
    uid: bytes
    key: str | bytes | None
    tag: str | bytes | None
    born_at: datetime
    dead_at: datetime
    attempts: int
    reason: str

    @property
    def place(self) -> Place:
        """Its partition and offset."""
        return self.partition, self.offset


@dataclass(frozen=True)
class DeadBody:
    """The further fields of a dead letter: headers, body, error and producer."""

    headers: bytes
    body: bytes
    size: int
    error: str
    producer_id: str


def _row(group_id: int, row: tuple[Any, ...]) -> DeadRow:
    partition, offset, uid, key, tag, born_at, dead_at, attempts, reason = row
    names = decode_key(key), decode_key(tag)
    return DeadRow(group_id, partition, offset, uid, *names, utc(born_at), utc(dead_at), attempts, reason)


def list_dead(session: Session, group_id: int, after: Place, limit: int) -> list[DeadRow]:
    """Return at most ``limit`` dead letters of a group after a place, ordered by partition and offset."""
    args = {"group_id": group_id, "partition": after[0], "offset": after[1], "limit": limit}
    return [_row(group_id, row) for row in session.rows(_SQL.list_dead, args)]


def get_dead(
    session: Session, group_id: int, place: Place, header_bytes: int, body_bytes: int
) -> tuple[DeadRow, DeadBody] | None:
    """Return a dead letter with its body, or ``None``.

    Args:
        header_bytes, body_bytes: the most bytes that are read of its headers and its body.
    """
    where = {"group_id": group_id, "partition": place[0], "offset": place[1]}
    rows = session.rows(_SQL.get_dead, where | {"header_bytes": header_bytes, "body_bytes": body_bytes})
    return (_row(group_id, rows[0][:9]), DeadBody(*rows[0][9:])) if rows else None


def find_dead(session: Session, group_ids: Collection[int] | None, uid: bytes) -> list[tuple[int, Place]]:
    """Return the groups for which a message is dead, each with its place there.

    Args:
        group_ids: only these groups; ``None`` for all.
    """
    rows = session.rows(_SQL.find_dead, {"uid": uid})
    chosen = [row for row in rows if group_ids is None or row[0] in group_ids]
    return [(group_id, (partition, offset)) for group_id, partition, offset in chosen]


def find_dead_at(session: Session, group_ids: Sequence[int], place: Place) -> list[tuple[int, Place]]:
    """Return the groups for which the message at a place is dead."""
    if not group_ids:
        return []
    args = {"group_ids": list(group_ids), "partition": place[0], "offset": place[1]}
    return [(group_id, (partition, offset)) for group_id, partition, offset in session.rows(_SQL.find_dead_at, args)]


def count_dead(session: Session, group_id: int) -> int:
    return int(session.rows(_SQL.count_dead, {"group_id": group_id})[0][0])


def requeue(session: Session, group: Group, places: Sequence[Place], progress: Callable[[int], None]) -> int:
    """Move dead letters back to retry: attempt 0, due now.

    Args:
        places: those that are not dead (any more) are skipped.
        progress: called with the number of places of each chunk, one transaction each.

    Returns:
        the number of dead letters moved.
    """
    return _by_chunk(session, places, progress, lambda s, partition, chunk: _requeue(s, group, partition, chunk))


def _requeue(session: Session, group: Group, partition: int, offsets: list[int]) -> int:
    where = {"group_id": group.id, "topic_id": group.topic_id, "partition": partition}
    # Lock the cursor, so that no replay takes a dead letter between our read and our commit. A deleted group has no
    # cursor, so that it gets no more retries.
    held = hold(session, group, partition)
    if held is None:
        return 0
    dead = [row[0] for row in session.rows(_SQL.lock_dead, where | {"offsets": offsets})]
    note_restored(session, group, partition, [offset for offset in dead if offset < held.log_start])
    movable = _with_message(session, where, dead)
    if not movable:
        return 0
    row = _SQL.keyed_fresh_retry_row if group.order is Order.KEY else _SQL.fresh_retry_row
    packet = session.packet()
    packet.insert_many(_SQL.add_fresh_retries, row, (where | {"offset": offset} for offset in movable))
    packet.send()
    return session.execute(_SQL.delete_dead, where | {"offsets": movable}).affected


def note_restored(session: Session, group: Group, partition: int, offsets: Sequence[int]) -> None:
    """Make retention keep messages below the log start offset until they have been run.

    Record them before their messages are read: if retention is deleting one, this waits until it is done.
    """
    if offsets:
        where = {"topic_id": group.topic_id, "partition": partition}
        packet = session.packet()
        packet.insert_many(_SQL.note_restored, _SQL.restored_row, (where | {"offset": offset} for offset in offsets))
        packet.send()


def _with_message(session: Session, where: dict[str, Any], dead: list[int]) -> list[int]:
    """Return those whose message is in the stream, after restoring the ones that retention has deleted."""
    if not dead:
        return []
    present = {row[0] for row in session.rows(_SQL.list_present, where | {"offsets": dead})}
    if missing := [offset for offset in dead if offset not in present]:
        session.execute(_SQL.restore_messages, where | {"offsets": missing})
        present = {row[0] for row in session.rows(_SQL.list_present, where | {"offsets": dead})}
    return [offset for offset in dead if offset in present]


def delete_dead(session: Session, group: Group, places: Sequence[Place], progress: Callable[[int], None]) -> int:
    """Delete dead letters for good, one transaction per chunk; return how many were deleted."""

    def work(session: Session, partition: int, offsets: list[int]) -> int:
        where = {"group_id": group.id, "topic_id": group.topic_id, "partition": partition}
        log_start = session.rows(_SQL.get_log_start, where)
        dead = [row[0] for row in session.rows(_SQL.lock_dead, where | {"offsets": offsets})]
        # Retention has skipped these, because a dead letter keeps its attempts; ``ems_restored`` makes it come back.
        note_restored(session, group, partition, [offset for offset in dead if log_start and offset < log_start[0][0]])
        return session.execute(_SQL.delete_dead, where | {"offsets": offsets}).affected

    return _by_chunk(session, places, progress, work)


def _by_chunk(
    session: Session,
    places: Sequence[Place],
    progress: Callable[[int], None],
    work: Callable[[Session, int, list[int]], int],
) -> int:
    count = 0
    for partition, chunk in _chunks(places):
        count += session.transaction(lambda s, p=partition, c=chunk: work(s, p, c))  # type: ignore[misc]
        progress(len(chunk))
    return count


def _chunks(places: Sequence[Place]) -> Iterator[tuple[int, list[int]]]:
    """Yield sorted chunks of one partition each, so that two concurrent callers do not deadlock."""
    for partition, members in groupby(sorted(set(places)), key=lambda place: place[0]):
        offsets = [offset for _, offset in members]
        for start in range(0, len(offsets), CHUNK):
            yield partition, offsets[start : start + CHUNK]
