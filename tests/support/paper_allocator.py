"""A third allocator, as a user would write one: offsets counted in this process."""

from typing import Self

from emsworker.core.config import Settings
from emsworker.publish.allocators import Placement
from emsworker.store.engine.session import Session
from emsworker.store.stream.messages import next_free_offset


class PaperAllocator:
    """Counts in a dictionary; MySQL says where a partition ends, at first and after a mistake."""

    def __init__(self) -> None:
        self.next: dict[tuple[int, int], int] = {}

    @classmethod
    def open(cls, settings: Settings, stream_id: str) -> Self:
        return cls()

    def place(self, session: Session, topic_id: int, partition: int, count: int) -> Placement:
        base = self.next.get((topic_id, partition)) or next_free_offset(session, topic_id, partition) or 1
        self.next[topic_id, partition] = base + count
        return Placement(base)

    def reseed(self, session: Session, topic_id: int, partition: int) -> None:
        self.next.pop((topic_id, partition), None)

    def landed(self, topic_id: int, partition: int, base: int, count: int) -> None:
        pass
