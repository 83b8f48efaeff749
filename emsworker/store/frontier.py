"""How far each partition has no hole, noted, so that whoever reads in bulk need not count what was counted before.

A row above the floor stays until the floor has passed it, so what was whole once stays whole. The note may lag behind
the resolved frontier, and never runs ahead of it.
"""

from __future__ import annotations

from emsworker.store import scan
from emsworker.store.session import Session
from emsworker.store.sql import Statements

_SQL = Statements("frontier")
_STEP = 200_000  # offsets of a partition in one look: a tenth of a second


def advance(session: Session) -> bool:
    """Count what has come to each partition since the last look, and note how far it has no hole.

    Returns:
        whether there is more to count.
    """
    more = False
    for topic_id, partition, resolved, end in session.rows(_SQL.list_unresolved):
        lo, hi = int(resolved), min(int(end), int(resolved) + _STEP)
        found = scan.find_hole(session, topic_id, partition, lo, hi)
        if found > lo:
            _note(session, topic_id, partition, found)
        more |= found == hi < end
    return more


def _note(session: Session, topic_id: int, partition: int, resolved: int) -> None:
    where = {"topic_id": topic_id, "partition": partition, "resolved": resolved}

    def work(session: Session) -> None:
        if session.rows(_SQL.lock_partition, where):
            session.execute(_SQL.set_resolved, where)

    session.transaction(work)
