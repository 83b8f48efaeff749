"""The default allocator: MySQL raises its counter inside the publishing transaction, so there are no holes."""

from __future__ import annotations

from emsworker.store.messages import Placement
from emsworker.store.session import Session


class MysqlAllocator:
    """Needs no other service; commit order is offset order."""

    def __init__(self) -> None:
        self._overtaken: set[tuple[int, int]] = set()

    def place(self, session: Session, topic_id: int, partition: int, count: int) -> Placement:
        """Leave it to the counter; past all rows where another allocator has been at work."""
        return Placement(past_rows=(topic_id, partition) in self._overtaken)

    def reseed(self, session: Session, topic_id: int, partition: int) -> None:
        """Another process uses the redis allocator on this partition: look at the rows from now on."""
        self._overtaken.add((topic_id, partition))
