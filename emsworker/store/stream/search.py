"""Search for messages, a window of offsets at a time, bodies read separately. No statement locks or changes rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from emsworker.core.selection.bounds import Bounds
from emsworker.core.selection.filters import EVERYTHING, Filter
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements, utc

_SQL = Statements(__name__)


@dataclass(frozen=True)
class SearchWindow:
    """A range of a partition: offsets from ``lo`` to ``hi``, both included."""

    topic_id: int
    partition: int
    lo: int
    hi: int

    @property
    def args(self) -> dict[str, int]:
        """The window as parameters."""
        return {"topic_id": self.topic_id, "partition": self.partition, "lo": self.lo, "hi": self.hi}


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


def list_window(session: Session, window: SearchWindow, bounds: Bounds, wanted: Filter = EVERYTHING) -> list[Found]:
    """List the messages of a window within the bounds, by offset.

    Args:
        wanted: a group's filter.
    """
    rows = session.rows(_SQL.list_window, window.args | bounds.args | wanted.args)
    return [
        Found(window.partition, offset, uid, key, tag, headers, size, utc(born_at), producer)
        for offset, uid, key, tag, headers, size, born_at, producer in rows
    ]


def list_wanted(session: Session, window: SearchWindow, wanted: Filter) -> list[Born]:
    """List the messages of a window that pass a group's filter, by offset."""
    return [
        Born(int(offset), utc(born_at)) for offset, born_at in session.rows(_SQL.list_wanted, window.args | wanted.args)
    ]


def read_bodies(session: Session, topic_id: int, piece: Sequence[Found]) -> dict[int, bytes]:
    """Read the bodies of messages of one partition, by offset; without those cancelled or deleted meanwhile."""
    where = {"topic_id": topic_id, "partition": piece[0].partition, "offsets": [one.offset for one in piece]}
    return dict(session.rows(_SQL.read_bodies, where))


def pieces(found: Sequence[Found], most_bytes: int) -> Iterator[list[Found]]:
    """Split messages into lists whose bodies have at most ``most_bytes`` bytes; a larger message stands alone."""
    piece: list[Found] = []
    size = 0
    for one in found:
        if piece and size + one.size > most_bytes:
            yield piece
            piece, size = [], 0
        piece.append(one)
        size += one.size
    if piece:
        yield piece


def list_extents(session: Session, topic_id: int) -> list[tuple[int, int, int]]:
    """List each partition of a topic with its log start offset and one past its last offset."""
    return [(int(row[0]), int(row[1]), int(row[2])) for row in session.rows(_SQL.list_extents, {"topic_id": topic_id})]


def find_outbox(session: Session, topic_id: int, uids: Sequence[bytes]) -> set[bytes]:
    """Return the uids of those messages that are still in the outbox."""
    return {uid for (uid,) in session.rows(_SQL.find_outbox, {"topic_id": topic_id, "uids": list(uids)})}
