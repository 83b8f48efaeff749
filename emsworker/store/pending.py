"""Messages that may not be read yet: written down at once, moved into the stream when they are due.

The relay moves a batch in one transaction: allocate, insert, delete. Until its commit the messages are pending, then
they are in the stream; there is no moment in between, whoever dies. It waits for nobody: the offset counter is locked
only inside its last packet, never while the relay thinks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from emsworker.core.model import NewMessage
from emsworker.core.partitioner import partition_of
from emsworker.store.errors import Duplicate
from emsworker.store.messages import PartitionBatch, Placement, add_batch, escape_message, find_uids
from emsworker.store.session import Session
from emsworker.store.sql import Statements

_SQL = Statements("pending")


@dataclass(frozen=True)
class Due:
    """A topic with pending messages: the first is due in ``seconds`` (negative: it is late)."""

    topic_id: int
    partitions: int
    seconds: float


def insert(
    session: Session,
    topic_id: int,
    message: NewMessage,
    producer_id: str,
    *,
    delay_s: float = 0.0,
    due_at: datetime | None = None,
) -> None:
    """Write a message that is due after ``delay_s`` seconds of the server's clock, or at ``due_at`` (UTC)."""
    values = {
        "topic_id": topic_id,
        "due_at": due_at.replace(tzinfo=None) if due_at else None,
        "delay_s": delay_s,
        "uid": message.uid,
        "partition": message.partition,
        "key": message.key,
        "tag": message.tag,
        "headers": message.headers,
        "body": message.body,
        "producer_id": producer_id,
    }
    session.transaction(lambda s: s.execute(_SQL.insert_pending, values))


def find_due(session: Session) -> list[Due]:
    """All topics with pending messages."""
    return [Due(topic_id, partitions, float(s)) for topic_id, partitions, s in session.rows(_SQL.find_due)]


def relay(session: Session, due: Due, limit: int) -> int:
    """Move up to ``limit`` due messages of a topic into the stream, in one transaction; returns how many."""

    def work(session: Session) -> int:
        session.begin()
        rows = session.rows(_SQL.lock_due, {"topic_id": due.topic_id, "limit": limit})
        if not rows:
            session.rollback()
            return 0
        packet = session.packet()
        for batch in _batches(rows, due):
            add_batch(packet, batch)
        packet.add(_SQL.delete_moved, {"topic_id": due.topic_id, "uids": [row[0] for row in rows]})
        packet.commit()
        try:
            packet.send()
        except Duplicate:
            return _drop_repeats(session, due.topic_id, [row[0] for row in rows])
        return len(rows)

    return session.again_on_conflict(lambda: work(session))


def _batches(rows: Sequence[tuple[Any, ...]], due: Due) -> list[PartitionBatch]:
    places: dict[int, list[str]] = {}
    for uid, partition, key, tag, headers, body, producer_id in rows:
        if partition is None:
            partition = partition_of(key if key is not None else uid, due.partitions)
        places.setdefault(partition, []).append(escape_message(NewMessage(uid, key, tag, headers, body), producer_id))
    return [PartitionBatch(due.topic_id, place, rows, Placement()) for place, rows in sorted(places.items())]


def _drop_repeats(session: Session, topic_id: int, uids: Sequence[bytes]) -> int:
    """Some of these were sent to the stream directly, with the same uid: they are not wanted twice."""
    landed = list(find_uids(session, topic_id, uids))
    if landed:
        session.transaction(lambda s: s.execute(_SQL.delete_moved, {"topic_id": topic_id, "uids": landed}))
    return len(landed)
