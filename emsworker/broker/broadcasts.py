"""The broadcasts of a stream, as a process reads them: from offsets of its own, without claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from emsworker.core.broadcast import BroadcastBatch, NamedReader, ReadableExtent, ReaderPosition
from emsworker.core.model import Topic
from emsworker.core.selection.filters import Filter
from emsworker.store.engine.session import Session
from emsworker.store.stream import broadcast as store
from emsworker.store.stream.messages import close_hole_at


class Broadcasts:
    """Broadcasts over a session of the stream in MySQL; one thread at a time uses it.

    Every method may raise :class:`StoreError`.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def ends(self, topic_ids: Sequence[int]) -> dict[tuple[int, int], ReadableExtent]:
        """Return the extent of every partition of these topics, by topic id and partition."""
        return store.find_ends(self._session, topic_ids)

    def read(
        self, topic: Topic, partition: int, offset: int, limit: int, limit_bytes: int, wanted: Filter
    ) -> BroadcastBatch:
        """Read messages from an offset on, up to the next hole."""
        return store.read(self._session, topic, partition, offset, limit, limit_bytes, wanted)

    def close_hole(self, topic: Topic, partition: int, offset: int, gap_timeout_s: float) -> bool:
        """Fill the hole at an offset if its producer is late; return whether there is something to read now."""
        return close_hole_at(self._session, topic.id, partition, offset, gap_timeout_s)

    def take_positions(self, reader: NamedReader, beginning: Mapping[int, int]) -> dict[int, ReaderPosition]:
        """Take over the positions of a named reader; partitions that it has none of begin where ``beginning`` says."""
        return store.take_positions(self._session, reader, beginning)

    def keep_position(self, reader: NamedReader, partition: int, offset: int) -> bool:
        """Store the position of a named reader; return false if another process has the name by now."""
        return store.store_position(self._session, reader, partition, offset)

    def sign_off(self, reader: NamedReader) -> None:
        """Record that a named reader has ended well."""
        store.sign_off(self._session, reader)
