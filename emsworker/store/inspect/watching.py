"""Counts of recently ended attempts, for monitoring of groups."""

from __future__ import annotations

from collections.abc import Sequence

from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements

_SQL = Statements(__name__)


def get_now(session: Session) -> int:
    """Return the time one second ago by the server's clock, in microseconds since 1970."""
    return int(session.rows(_SQL.get_now)[0][0])


def count_attempts(session: Session, group_ids: Sequence[int], from_us: int, to_us: int) -> list[tuple[int, int]]:
    """Count, for each group and in a span of time, attempts that failed and attempts that were not a message's first.

    Args:
        from_us, to_us: microseconds since 1970; the first exclusive, the last inclusive.
    """
    if not group_ids:
        return []
    packet = session.packet()
    for group_id in group_ids:
        packet.add(_SQL.count_attempts, {"group_id": group_id, "from_us": from_us, "to_us": to_us})
    return [(int(result.rows[0][0]), int(result.rows[0][1])) for result in packet.send()]
