"""Messages and offsets: publishing, duplicates, holes and tombstones."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from emsworker.core.errors import Conflict
from emsworker.core.model import MESSAGE_COLUMNS, NewMessage
from emsworker.core.process.clock import ticks
from emsworker.store.engine.session import Packet, Session
from emsworker.store.engine.sql import (
    Part,
    Sql,
    Statements,
    fill,
    fill_rows,
    insertion,
    message_blobs,
    nest,
)
from emsworker.store.stream.columns import MESSAGE
from emsworker.store.stream.guards import hold_partition

T = TypeVar("T")

_SQL = Statements(__name__, **MESSAGE)
FARTHEST = 100_000  # offsets above the known end of a partition: a counter that is beyond is wrong
_TOMBSTONES_A_STATEMENT = 1000
_HEADERS_BYTES = 64 << 10  # of a packet: what is in it beside the body
_ROW_BYTES = 736  # its producer's name, times and numbers


class Placement(NamedTuple):
    """Placement of a run of messages in a partition.

    Args:
        base: its first offset, or ``None`` for the first one that is free when the server inserts them.
    """

    base: int | None = None


@dataclass(slots=True)
class PartitionBatch:
    """Messages for one partition in one statement, in this order."""

    topic_id: int
    partition: int
    messages: Sequence[NewMessage]
    placement: Placement


def _body_of(message: NewMessage) -> Sql:
    """Return the part of a row that does not depend on its place."""
    return message_blobs(message.columns, message.producer_id, sized=True)


def row_bytes(message: NewMessage) -> int:
    """Return the most bytes that a message takes in a statement; hexadecimal literals double its size."""
    named = len(message.key or b"") + len(message.tag or b"")
    return 2 * (len(message.uid) + named + len(message.headers) + len(message.body)) + _ROW_BYTES


def fitting_body(packet: int) -> int:
    """Return the most bytes of a body that a server takes with ordinary headers, by its ``max_allowed_packet``."""
    return max((packet - _HEADERS_BYTES) // 2, 1)


def packet_of(body_bytes: int) -> int:
    """Return the ``max_allowed_packet`` that a body needs: it is sent as hexadecimal digits, two for each byte."""
    return 2 * body_bytes + _HEADERS_BYTES


def publish(session: Session, batches: Iterable[PartitionBatch], until: float = math.inf) -> list[int]:
    """Write messages of one or more partitions in one transaction and one packet.

    Args:
        batches: at most one for each partition; they are locked in sorted order, so that publishers do not deadlock.
        until: a time of :func:`ticks` after which a conflict is not retried.

    Returns:
        the first offset of each batch, in sorted order of (topic, partition).

    Raises:
        AssertionBroken: a partition is gone, or an offset lies below the log start offset or far above the end.
        Conflict: others kept the partition locked; the transaction was rolled back.
        Duplicate: an offset (key ``PRIMARY``) or a uid (key ``uid``) is taken; the transaction was rolled back.
    """
    ordered = list(batches)
    if len(ordered) > 1:
        ordered.sort(key=lambda batch: (batch.topic_id, batch.partition))
    if len(ordered) == 1 and len(ordered[0].messages) == 1:
        return [_publish_one(session, ordered[0], until)]
    if len(ordered) == 1 and (alone := _only_statement(session, ordered[0])) is not None:
        base = ordered[0].placement.base
        results = _patiently(session, lambda: session.send(alone), until)
        return [results[0].insert_id if base is None else base]

    def attempt() -> list[int]:
        packet = session.packet()
        packet.begin()
        placed = [add_batch(packet, batch) for batch in ordered]
        packet.commit()
        results = packet.send()
        return [results[index].insert_id if base is None else base for index, base in placed]

    return session.retry_on_conflict(attempt, until)


def _publish_one(session: Session, batch: PartitionBatch, until: float) -> int:
    """Send one message in one statement, a transaction by itself: the usual send; returns its offset."""
    message, base = batch.messages[0], batch.placement.base
    args = {
        **{"topic_id": batch.topic_id, "partition": batch.partition},
        **({} if base is None else {"base": base, "farthest": FARTHEST}),
        **dict(zip(MESSAGE_COLUMNS, message.columns, strict=True)),
        **{"producer_id": message.producer_id.encode(), "size": len(message.body)},
    }
    result = _patiently(session, lambda: session.run_often(_insert_one(base is not None), args), until)
    return result.insert_id if base is None else base


@functools.cache
def _insert_one(is_known: bool) -> Sql:
    offset = _SQL.known_offset if is_known else _SQL.free_offset
    row = nest(nest(_SQL.message_row, "message", _SQL.message_values), "offset", offset)
    return insertion(_SQL.insert_messages, [row])


def _patiently(session: Session, attempt: Callable[[], T], until: float) -> T:
    """Run one statement, retried on conflict; without conflict nothing is prepared for that."""
    try:
        return attempt()
    except Conflict:
        if ticks() > until:
            raise
        return session.retry_on_conflict(attempt, until)


def _only_statement(session: Session, batch: PartitionBatch) -> Sql | None:
    """Return the only statement of a batch, a transaction by itself; ``None`` if it takes more."""
    packet = session.packet()
    add_batch(packet, batch)
    return packet.only_statement


def add_batch(packet: Packet, batch: PartitionBatch) -> tuple[int, int | None]:
    """Append the statement that inserts a batch, or several if one is too large for the server.

    Returns:
        the index of the result whose ``insert_id`` is the first offset, and that offset if it is already known.
    """
    where: dict[str, Part] = {"topic_id": batch.topic_id, "partition": batch.partition}
    base, count, index = batch.placement.base, len(batch.messages), len(packet)
    if base is None:
        first, further, numbers = fill(_SQL.free_offset, where), _SQL.further_row, range(1, count)
    else:
        first, further = fill(_SQL.known_offset, {**where, "base": base, "farthest": FARTHEST}), _SQL.message_row
        numbers = range(base + 1, base + count)
    bodies = [_body_of(message) for message in batch.messages]
    rows = [fill(_SQL.message_row, {**where, "offset": first, "message": bodies[0]})]
    if count > 1:
        rows += fill_rows(further, where, {"offset": numbers, "message": bodies[1:]})
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


def note_end(session: Session, topic_id: int, partition: int) -> int | None:
    """Raise MySQL's counter to the end of a partition, and return it; ``None`` if there is no such partition."""
    packet = session.packet()
    packet.begin()
    raise_counter(packet, topic_id, partition, 0)
    packet.commit()
    packet.send()
    return next_free_offset(session, topic_id, partition)


class Neighbour(NamedTuple):
    """A row after a hole, and its age in seconds."""

    offset: int
    age_s: float


def next_row(session: Session, topic_id: int, partition: int, offset: int) -> Neighbour | None:
    """Return the first row at an offset or after it."""
    rows = session.rows(_SQL.find_hole, {"topic_id": topic_id, "partition": partition, "from_offset": offset})
    return Neighbour(int(rows[0][0]), float(rows[0][1])) if rows else None


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
    neighbour = next_row(session, topic_id, partition, first)
    if neighbour is None or neighbour.offset == first:
        return neighbour is not None
    if neighbour.age_s < gap_timeout_s or neighbour.offset - first > FARTHEST:  # see strays
        return False
    last = min(neighbour.offset, first + _TOMBSTONES_A_STATEMENT)
    where = {"topic_id": topic_id, "partition": partition}

    def work(session: Session) -> bool:
        there = hold_partition(session, topic_id, partition)
        if there:
            packet = session.packet()
            rows = (where | {"offset": offset} for offset in range(first, last))
            packet.insert_many(_SQL.insert_tombstones, _SQL.tombstone_row, rows)
            packet.send()
        return there

    return session.transaction(work)
