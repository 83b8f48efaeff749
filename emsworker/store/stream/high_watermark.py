"""Stored high watermarks of the partitions, so that bulk readers need not check the same offsets again.

A row above the log start offset stays until the log start offset has passed it, so a range without holes stays so. The
stored value may lag behind the actual high watermark, and is never ahead of it.
"""

from __future__ import annotations

from emsworker.core.offsets import OffsetRange
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements
from emsworker.store.stream import holes

_SQL = Statements(__name__)
_STEP = 200_000  # offsets of a partition per call: a tenth of a second


def advance(session: Session) -> bool:
    """Advance the stored high watermark of each partition over its new rows, up to the first hole.

    Returns:
        True if there is more to check; a partition that is locked is left for the next call.
    """
    more = False
    for topic_id, partition, high_watermark, end in session.rows(_SQL.list_unresolved):
        start = int(high_watermark)
        offsets = OffsetRange(topic_id, partition, start, min(int(end), start + _STEP))
        found = holes.find_hole(session, offsets)
        noted = found > start and _note(session, topic_id, partition, found)
        more |= noted and found == offsets.end < end
    return more


def _note(session: Session, topic_id: int, partition: int, high_watermark: int) -> bool:
    """Store it in one packet: a leader that is stopped at any moment holds no lock that a producer waits for."""

    def attempt() -> bool:
        where = {"topic_id": topic_id, "partition": partition, "high_watermark": high_watermark}
        packet = session.packet()
        packet.add(_SQL.forget)
        packet.begin()
        packet.add(_SQL.lock_partition, where)
        changed = packet.add(_SQL.set_high_watermark, where)
        packet.commit()
        return packet.send()[changed].affected > 0

    return session.retry_on_conflict(attempt)
