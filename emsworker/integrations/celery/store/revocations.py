"""Ids of tasks that were revoked."""

from __future__ import annotations

from collections.abc import Sequence

from emsworker.extending.database import Session, Statements

_SQL = Statements(__name__)
_IDS_A_STATEMENT = 500
_KEPT_S = 366 * 86_400  # a task for later may wait for as long
MOST_BYTES = 255
"""Of an id; longer ones are not kept."""


def add(session: Session, task_ids: Sequence[str]) -> None:
    """Keep ids for a year."""
    rows = [{"task_id": task_id.encode(), "kept_s": _KEPT_S} for task_id in sorted(task_ids)]

    def work(session: Session) -> None:
        packet = session.packet()
        packet.insert_many(_SQL.add_revoked, _SQL.revoked_row, rows, _SQL.keep_revoked)
        packet.send()

    if rows:
        session.transaction(work)


def find(session: Session, task_ids: Sequence[str]) -> set[str]:
    """Return those of some ids that are kept."""
    found: set[str] = set()
    for first in range(0, len(task_ids), _IDS_A_STATEMENT):
        some = [task_id.encode() for task_id in task_ids[first : first + _IDS_A_STATEMENT]]
        found |= {bytes(task_id).decode() for (task_id,) in session.rows(_SQL.find_revoked, {"task_ids": some})}
    return found


def sweep(session: Session, limit: int) -> int:
    """Delete at most ``limit`` ids that were kept for long enough; returns how many."""
    return session.change(_SQL.delete_expired, {"limit": limit})
