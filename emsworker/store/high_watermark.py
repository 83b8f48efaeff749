"""How far each partition has no hole, noted, so that whoever reads in bulk need not count what was counted before.

A row above the log start offset stays until the log start offset has passed it, so what was whole once stays whole. The
note may lag behind the high watermark, and never runs ahead of it.
"""

from __future__ import annotations

from emsworker.store import scan
from emsworker.store.session import Session
from emsworker.store.sql import Statements

_SQL = Statements("high_watermark")
_STEP = 200_000  # offsets of a partition in one look: a tenth of a second


def advance(session: Session) -> bool:
    """Count what has come to each partition since the last look, and note how far it has no hole.

    Returns:
        whether there is more to count; a partition that somebody has locked has its turn at the next look.
    """
    more = False
    for topic_id, partition, high_watermark, end in session.rows(_SQL.list_unresolved):
        lo, hi = int(high_watermark), min(int(end), int(high_watermark) + _STEP)
        found = scan.find_hole(session, topic_id, partition, lo, hi)
        noted = found > lo and _note(session, topic_id, partition, found)
        more |= noted and found == hi < end
    return more


def _note(session: Session, topic_id: int, partition: int, high_watermark: int) -> bool:
    """In one packet: a leader that is stopped at any moment holds no lock that a producer waits for."""

    def attempt() -> bool:
        where = {"topic_id": topic_id, "partition": partition, "high_watermark": high_watermark}
        packet = session.packet()
        packet.add(_SQL.forget)
        packet.begin()
        packet.add(_SQL.lock_partition, where)
        changed = packet.add(_SQL.set_high_watermark, where)
        packet.commit()
        return packet.send()[changed].affected > 0

    return session.again_on_conflict(attempt)
