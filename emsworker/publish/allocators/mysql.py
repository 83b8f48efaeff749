"""The default allocator: needs no other service, and leaves no holes.

The last publisher of a partition knows where it ends: the next messages go right behind, in one statement, and the
primary key refuses them if that no longer holds. If it does not, because others publish there too, MySQL's own counter
is raised inside the publishing transaction for a while: two statements and a commit, but no publisher is refused.
"""

from __future__ import annotations

from typing import Self

from emsworker.core.config import Settings
from emsworker.core.process.clock import ticks
from emsworker.store.engine.session import Session
from emsworker.store.stream.messages import Placement

_CONTENDED_S = 1.0


class MysqlAllocator:
    """An allocator whose commit order is offset order; used by one thread at a time."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, int], int] = {}
        self._contended: dict[tuple[int, int], float] = {}

    @classmethod
    def open(cls, settings: Settings, stream_id: str) -> Self:
        """Make the allocator of a process; see :class:`Allocator`."""
        return cls()

    def place(self, session: Session, topic_id: int, partition: int, count: int) -> Placement:
        """Return the place right behind our last messages, or leave it to MySQL's counter."""
        key = (topic_id, partition)
        if ticks() < self._contended.get(key, 0.0):
            return Placement()
        return Placement(self._ends.get(key))

    def reseed(self, session: Session, topic_id: int, partition: int) -> None:
        """Use MySQL's counter for a while, because others have published there."""
        self._ends.pop((topic_id, partition), None)
        self._contended[topic_id, partition] = ticks() + _CONTENDED_S

    def landed(self, topic_id: int, partition: int, base: int, count: int) -> None:
        """Note the new end of the partition."""
        self._ends[topic_id, partition] = base + count
