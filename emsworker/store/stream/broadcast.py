"""Reading a broadcast topic: no lock, no claim, no ack. A reader with a stable name keeps its position in a row.

The row belongs to the reader that took it last. A reader that ends well signs off. If it did not, the next reader
counts a death, and the count is reset when a reader gets further. This detects a message that kills its readers
repeatedly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from emsworker.core.broadcast import BroadcastBatch, NamedReader, ReadableExtent, ReaderPosition
from emsworker.core.errors import TopicDeleted
from emsworker.core.model import Topic
from emsworker.core.selection.filters import Filter
from emsworker.core.times import utc
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements
from emsworker.store.stream.columns import MESSAGE
from emsworker.store.stream.guards import hold_topic

_SQL = Statements(__name__, **MESSAGE)


@dataclass(frozen=True)
class ReaderRow:
    """A stored position as ``ems readers`` shows it; ``age_s`` seconds ago it was written."""

    topic: str
    reader: str
    partition: int
    next_offset: int
    lag: int
    open: bool
    stored_at: datetime
    age_s: float


def find_ends(session: Session, topic_ids: Sequence[int]) -> dict[tuple[int, int], ReadableExtent]:
    """The extent of every partition of these topics, by topic id and partition."""
    rows = session.rows(_SQL.find_ends, {"topic_ids": sorted(topic_ids)})
    return {
        (int(topic_id), int(partition)): ReadableExtent(int(log_start), max(int(log_start), int(end)), bool(readable))
        for topic_id, partition, log_start, end, readable in rows
    }


def read(
    session: Session, topic: Topic, partition: int, offset: int, limit: int, limit_bytes: int, wanted: Filter
) -> BroadcastBatch:
    """Read from an offset up to the first hole, at most ``limit`` offsets and ``limit_bytes`` of bodies."""
    where = {"topic_id": topic.id, "partition": partition}
    packet = session.packet()
    packet.add(_SQL.read_sizes, where | {"from_offset": offset, "limit": limit})
    packet.add(_SQL.get_log_start, where)
    sizes, log_starts = (result.rows for result in packet.send())
    log_start = int(log_starts[0][0]) if log_starts else 0
    hi, size = offset - 1, 0
    for found, bytes_ in sizes:
        if found != hi + 1 or (size and size + bytes_ > limit_bytes):
            break
        hi, size = int(found), size + int(bytes_)
    if hi < offset:
        return BroadcastBatch(None, log_start, int(sizes[0][0]) if sizes else None)
    packet = session.packet()
    packet.add(_SQL.get_now)
    packet.add(_SQL.read_bodies, where | {"lo": offset, "hi": hi} | wanted.args)
    now, rows = (result.rows for result in packet.send())
    return BroadcastBatch(hi, log_start, offset, rows, now[0][0])


def read_few(
    session: Session, topic: Topic, partition: int, offsets: range, limit_bytes: int
) -> Sequence[tuple[Any, ...]] | None:
    """Read a range of messages by one statement.

    Returns:
        as the rows of :func:`read`; ``None`` if one is missing, is a tombstone, or is larger than its share of
        ``limit_bytes``.
    """
    where = {"topic_id": topic.id, "partition": partition, "lo": offsets.start, "hi": offsets.stop - 1}
    rows = session.rows(_SQL.read_few, where | {"most": limit_bytes // len(offsets)})
    return rows if len(rows) == len(offsets) else None


def take_positions(session: Session, reader: NamedReader, beginning: Mapping[int, int]) -> dict[int, ReaderPosition]:
    """Take a name over from its previous reader; return its position in each partition.

    Args:
        beginning: the first offset for each partition; used where the name has no stored position.

    Raises:
        TopicDeleted: the topic has been deleted.
    """

    def work(session: Session) -> None:
        if not hold_topic(session, reader.topic_id):
            raise TopicDeleted(reader.name, of_reader=True)
        for partition, offset in sorted(beginning.items()):
            session.execute(_SQL.take_position, _args_of(reader) | {"partition": partition, "next_offset": offset})

    session.transaction(work)
    rows = session.rows(_SQL.get_positions, _args_of(reader))
    return {int(partition): ReaderPosition(int(offset), int(deaths)) for partition, offset, deaths in rows}


def _args_of(reader: NamedReader) -> dict[str, Any]:
    return {"topic_id": reader.topic_id, "name": reader.name, "reader": reader.token}


def store_position(session: Session, reader: NamedReader, partition: int, offset: int) -> bool:
    """Store the position of a reader; return False if another process has taken its name."""
    args = _args_of(reader) | {"partition": partition, "next_offset": offset}
    return session.change(_SQL.store_position, args) == 1


def sign_off(session: Session, reader: NamedReader) -> None:
    """Record that a reader has ended well."""
    session.change(_SQL.sign_off, _args_of(reader))


def list_positions(session: Session, topic: str | None) -> list[ReaderRow]:
    """Every stored position, or those of one topic, by topic and name."""
    return [
        ReaderRow(
            topic,
            name,
            int(partition),
            int(offset),
            max(0, int(end) - int(offset)),
            bool(is_open),
            utc(at),
            max(0.0, float(age_s)),
        )
        for topic, name, partition, offset, end, is_open, at, age_s in session.rows(
            _SQL.list_positions, {"topic": topic}
        )
    ]


def forget_positions(session: Session, topic_id: int, name: str | None, idle_s: float) -> int:
    """Delete the positions of a topic that were stored at least ``idle_s`` seconds ago; return how many.

    Args:
        name: only of this reader; ``None``: of all.
    """
    args = {"topic_id": topic_id, "any_name": int(name is None), "name": name or "", "idle_s": idle_s}
    total = 0
    while deleted := session.change(_SQL.forget_positions, args):
        total += deleted
    return total
