"""Messages and offsets: publishing, duplicates, holes and tombstones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from emsworker.core.model import NewMessage
from emsworker.store.engine.errors import Conflict, Duplicate
from emsworker.store.engine.session import Packet, Session, bytes_literal
from emsworker.store.engine.sql import Statements
from emsworker.store.stream.guards import hold_partition

_SQL = Statements(__name__)
_TOMBSTONES_A_STATEMENT = 1000


@dataclass(frozen=True)
class Placement:
    """Placement of a run of messages in a partition.

    Args:
        base: its first offset, or ``None`` to have MySQL's own counter raised in the same transaction.
    """

    base: int | None = None


@dataclass(frozen=True)
class PartitionBatch:
    """Messages for one partition in one statement, in this order; :func:`escape_message` makes their rows."""

    topic_id: int
    partition: int
    messages: Sequence[NewMessage]
    placement: Placement


def escape_message(message: NewMessage, producer_id: str) -> str:
    """Return the part of a row that does not depend on its place, as SQL; made once, however often it is sent."""
    values = (message.uid, message.key, message.tag, message.headers, message.body, producer_id.encode())
    return ",".join([bytes_literal(value) for value in values]) + f",{len(message.body)})"


def publish(session: Session, batches: Iterable[PartitionBatch], until: float = math.inf) -> list[int]:
    """Write messages of one or more partitions in one transaction and one packet.

    Args:
        batches: at most one for each partition; they are locked in sorted order, so that publishers do not deadlock.
        until: a time of :func:`ticks` after which a conflict is not retried.

    Returns:
        the first offset of each batch, in sorted order of (topic, partition).

    Raises:
        AssertionBroken: a partition is gone, or an offset lies below the log start offset.
        Conflict: others kept the partition locked; the transaction was rolled back.
        Duplicate: an offset (key ``PRIMARY``) or a uid (key ``uid``) is taken; the transaction was rolled back.
    """
    ordered = sorted(batches, key=lambda batch: (batch.topic_id, batch.partition))
    base = ordered[0].placement.base if len(ordered) == 1 else None
    if base is not None and (alone := _as_one_statement(session, ordered[0])) is not None:
        try:
            session.send(alone)
        except Conflict:
            session.again_on_conflict(lambda: session.send(alone), until)
        return [base]

    def attempt() -> list[int]:
        packet = session.packet()
        packet.begin()
        placed = [add_batch(packet, batch) for batch in ordered]
        packet.commit()
        results = packet.send()
        return [results[index].insert_id if base is None else base for index, base in placed]

    return session.again_on_conflict(attempt, until)


def _as_one_statement(session: Session, batch: PartitionBatch) -> str | None:
    """Return the only statement, a transaction by itself, of a batch whose place is known; ``None`` if it takes more.

    It serves the usual send: one round trip, and nothing that is prepared for more.
    """
    packet = session.packet()
    add_batch(packet, batch)
    return packet.only_statement


def add_batch(packet: Packet, batch: PartitionBatch) -> tuple[int, int | None]:
    """Append the statements that allocate and insert a batch.

    Returns:
        the index of the result whose ``insert_id`` is the first offset, and that offset if it is already known.
    """
    where = {"topic_id": batch.topic_id, "partition": batch.partition}
    base = batch.placement.base
    index = 0
    if base is None:
        index = raise_counter(packet, batch.topic_id, batch.partition, len(batch.messages))
        offsets = [_SQL.raised_offset, *(f"LAST_INSERT_ID()+{number}" for number in range(1, len(batch.messages)))]
    else:
        first = _SQL.known_offset % (where | {"base": base})  # integers only
        offsets = [first, *map(str, range(base + 1, base + len(batch.messages)))]
    head = f"({batch.topic_id},{batch.partition},"
    rows = [f"{head}{offset},NOW(6),{one.row}" for offset, one in zip(offsets, batch.messages, strict=True)]
    packet.add_rows(_SQL.insert_messages, rows)
    return index, base


def raise_counter(packet: Packet, topic_id: int, partition: int, count: int) -> int:
    """Append the statement that allocates offsets and sets LAST_INSERT_ID() to the first one; returns its index."""
    return packet.add(_SQL.raise_counter, {"topic_id": topic_id, "partition": partition, "count": count})


def find_uids(session: Session, topic_id: int, uids: Sequence[bytes]) -> dict[bytes, tuple[int, int]]:
    """Find the messages with these uids: uid -> (partition, offset)."""
    if not uids:
        return {}
    rows = session.rows(_SQL.find_uids, {"topic_id": topic_id, "uids": list(uids)})
    return {uid: (partition, offset) for uid, partition, offset in rows}


def next_free_offset(session: Session, topic_id: int, partition: int) -> int | None:
    """Return the offset after all that MySQL knows to be allocated, or ``None`` if there is no such partition."""
    rows = session.rows(_SQL.find_next_free_offset, {"topic_id": topic_id, "partition": partition})
    return int(rows[0][0]) if rows else None


def close_hole(session: Session, topic_id: int, group_id: int, partition: int, gap_timeout_s: float) -> bool:
    """Fill the hole at a group's cursor with tombstones if the next row after it is old enough.

    A late producer of such an offset gets a duplicate key and allocates other offsets. If it has inserted but not
    committed, our insert waits for its commit, and the producer's row stays.

    Returns:
        whether the offset at the cursor is resolved now.
    """
    cursor = session.rows(_SQL.get_cursor, {"group_id": group_id, "partition": partition})
    return bool(cursor) and close_hole_at(session, topic_id, partition, int(cursor[0][0]), gap_timeout_s)


def close_hole_at(session: Session, topic_id: int, partition: int, first: int, gap_timeout_s: float) -> bool:
    """Fill the hole that begins at an offset, as :func:`close_hole` does."""
    rows = session.rows(_SQL.find_hole, {"topic_id": topic_id, "partition": partition, "from_offset": first})
    if not rows or rows[0][0] == first:
        return bool(rows)
    neighbour, age_s = rows[0]
    if age_s < gap_timeout_s:
        return False
    last = min(neighbour, first + _TOMBSTONES_A_STATEMENT)
    values = ",".join(f"({topic_id},{partition},{offset},'tombstone','','',NOW(6))" for offset in range(first, last))

    def work(session: Session) -> bool:
        there = hold_partition(session, topic_id, partition)
        if there:
            session.send(f"{_SQL.insert_tombstones} {values}")
        return there

    return session.transaction(work)


__all__ = [
    "Duplicate",
    "PartitionBatch",
    "Placement",
    "close_hole",
    "close_hole_at",
    "escape_message",
    "find_uids",
    "next_free_offset",
    "publish",
    "raise_counter",
]
