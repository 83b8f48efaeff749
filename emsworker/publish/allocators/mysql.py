"""The default allocator: needs no other service, and leaves no holes.

A publisher that is alone in a partition knows where it ends: the next messages go right behind, and the primary key
refuses them if others have published there meanwhile. Then the server looks for the end in the statement that inserts,
while it holds the partition, until the publisher has been alone for some sends.
"""

from __future__ import annotations

from typing import Self

from emsworker.core.config import Settings
from emsworker.store.engine.session import Session
from emsworker.store.stream.messages import Placement

_ALONE = 16  # sends between which nobody else has published


class MysqlAllocator:
    """An allocator whose commit order is offset order; used by one thread at a time."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, int], int] = {}
        self._shared: dict[tuple[int, int], int] = {}  # partition -> sends until it counts as ours alone

    @classmethod
    def open(cls, settings: Settings, stream_id: str) -> Self:
        """Make the allocator of a process; see :class:`Allocator`."""
        return cls()

    def place(self, session: Session, topic_id: int, partition: int, count: int) -> Placement:
        """Return the place right behind our last messages, or leave it to the server."""
        key = (topic_id, partition)
        return Placement(None if key in self._shared else self._ends.get(key))

    def reseed(self, session: Session, topic_id: int, partition: int) -> None:
        """Leave the place to the server, because others have published there."""
        self._ends.pop((topic_id, partition), None)
        self._shared[topic_id, partition] = _ALONE

    def landed(self, topic_id: int, partition: int, base: int, count: int) -> None:
        """Note the new end of the partition, and whether anybody else has published since the last one."""
        key = (topic_id, partition)
        if key in self._shared:
            self._shared[key] = self._shared[key] - 1 if base == self._ends.get(key) else _ALONE
            if not self._shared[key]:
                del self._shared[key]
        self._ends[key] = base + count
