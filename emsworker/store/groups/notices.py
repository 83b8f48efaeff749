"""Notices of dead letters whose own process could not call its hooks, for the middleware of the group's workers.

The beat runs without an app, and a process whose handler hangs is replaced. The process that makes the dead letter
writes a notice in the same transaction, and one worker process of the group takes it. A notice is deleted before the
hooks are called: they are called at most once, and not at all if the process dies just then.
"""

from __future__ import annotations

from collections.abc import Sequence

from emsworker.core.model import Notice
from emsworker.store.engine.session import Packet, Session
from emsworker.store.engine.sql import Statements
from emsworker.store.stream.columns import MESSAGE

_SQL = Statements(__name__, **MESSAGE)


def add_notice(packet: Packet, group_id: int, partition: int, offset: int) -> None:
    """Append a notice to an open transaction."""
    packet.add(_SQL.add_notice, {"group_id": group_id, "partition": partition, "offset": offset})


def take_notices(session: Session, group_ids: Sequence[int], limit: int) -> list[Notice]:
    """Take at most ``limit`` notices of some groups; no other process gets them."""
    if not group_ids:
        return []
    found = []
    for group_id, partition, offset in session.rows(_SQL.list_notices, {"group_ids": list(group_ids), "limit": limit}):
        where = {"group_id": group_id, "partition": partition, "offset": offset}
        rows = session.rows(_SQL.get_dead, where)
        if session.change(_SQL.delete_notice, where) == 1 and rows:  # none if it was requeued meanwhile
            attempts, reason, error, error_type, *message = rows[0]
            found.append(Notice(group_id, partition, tuple(message), attempts, reason, error, error_type))
    return found


def sweep(session: Session, limit: int) -> int:
    """Delete at most ``limit`` notices that nobody has taken for a day; returns how many."""
    return session.change(_SQL.delete_old, {"limit": limit})
