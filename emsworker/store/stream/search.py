"""Search for messages, a range of offsets at a time, bodies read separately. No statement locks or changes rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from emsworker.core.offsets import OffsetRange
from emsworker.core.selection.bounds import Bounds
from emsworker.core.selection.filters import Filter
from emsworker.core.times import utc
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements

_SQL = Statements(__name__)


@dataclass(frozen=True)
class Found:
    """A message without its body."""

    partition: int
    offset: int
    uid: bytes
    key: bytes | None
    tag: bytes | None
    raw_headers: bytes
    size: int
    born_at: datetime
    producer: str


@dataclass(frozen=True, slots=True)
class Born:
    """Offset and insertion time of a message."""

    offset: int
    born_at: datetime


def list_messages(
    session: Session, offsets: OffsetRange, bounds: Bounds, wanted: Filter, header_bytes: int
) -> list[Found]:
    """List the messages of a range within the bounds, by offset.

    Args:
        wanted: a group's filter.
        header_bytes: the most bytes of headers that are read of each.
    """
    where = offsets.args | bounds.args | wanted.args | {"header_bytes": header_bytes}
    rows = session.rows(_SQL.list_messages, where)
    return [
        Found(offsets.partition, offset, uid, key, tag, headers, size, utc(born_at), producer)
        for offset, uid, key, tag, headers, size, born_at, producer in rows
    ]


def list_wanted(session: Session, offsets: OffsetRange, wanted: Filter) -> list[Born]:
    """List the messages of a range that pass a group's filter, by offset."""
    rows = session.rows(_SQL.list_wanted, offsets.args | wanted.args)
    return [Born(int(offset), utc(born_at)) for offset, born_at in rows]


def read_bodies(
    session: Session, topic_id: int, partition: int, offsets: Sequence[int], body_bytes: int
) -> dict[int, bytes]:
    """Read the bodies of messages of one partition, by offset; without those cancelled or deleted meanwhile.

    Args:
        body_bytes: the most bytes that are read of each.
    """
    where = {"topic_id": topic_id, "partition": partition, "offsets": list(offsets), "body_bytes": body_bytes}
    return dict(session.rows(_SQL.read_bodies, where))


def list_extents(session: Session, topic_id: int) -> list[OffsetRange]:
    """List the partitions of a topic, each from its log start offset to one past its last offset."""
    rows = session.rows(_SQL.list_extents, {"topic_id": topic_id})
    return [OffsetRange(topic_id, int(partition), int(start), int(end)) for partition, start, end in rows]


def find_outbox(session: Session, topic_id: int, uids: Sequence[bytes]) -> set[bytes]:
    """Return the uids of those messages that are still in the outbox."""
    return {uid for (uid,) in session.rows(_SQL.find_outbox, {"topic_id": topic_id, "uids": list(uids)})}


@dataclass(frozen=True)
class SentMessage:
    """A message as it was sent, in the stream or still in the outbox."""

    topic_id: int
    raw_headers: bytes
    body: bytes
    sent_at: datetime


def read_sent(session: Session, topic_ids: Sequence[int], uid: bytes) -> SentMessage | None:
    """Read a message by its uid; ``None`` if none of the topics has it."""
    if not topic_ids:
        return None
    rows = session.rows(_SQL.read_sent, {"topic_ids": list(topic_ids), "uid": uid})
    if not rows:
        return None
    topic_id, headers, body, sent_at = rows[0]
    return SentMessage(topic_id, headers, body, utc(sent_at))
