"""Allocators of offsets: MySQL's own counter, or Redis in front of it."""

from __future__ import annotations

from typing import Protocol

from emsworker.store.engine.session import Session
from emsworker.store.stream.messages import Placement


class Allocator(Protocol):
    """Hands out places for messages; the primary key of the message table has the last word."""

    def place(self, session: Session, topic_id: int, partition: int, count: int) -> Placement:
        """Return the place of the next ``count`` messages of a partition."""
        ...

    def reseed(self, session: Session, topic_id: int, partition: int) -> None:
        """Ask MySQL where the partition ends, after an offset was taken or below the log start offset."""
        ...

    def landed(self, topic_id: int, partition: int, base: int, count: int) -> None:
        """Note that ``count`` messages from ``base`` on have been committed."""
        ...
