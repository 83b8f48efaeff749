"""The messages of a group that nobody has in hand: their number, and their removal."""

from __future__ import annotations

from emsworker.core.model import Group
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements
from emsworker.store.groups.cursors import list_positions, skip_to

_SQL = Statements(__name__)


def count(session: Session, group: Group) -> int:
    """Count the messages that are not claimed, or wait for another claim or a retry."""
    unclaimed = sum(max(0, one.end - one.cursor) for one in list_positions(session, group))
    return unclaimed + int(session.rows(_SQL.count_waiting, {"group_id": group.id})[0][0])


def purge(session: Session, group: Group, reason: str) -> int:
    """Skip everything that nobody has in hand; return the number of messages.

    Messages in hand are left to their owners, as those that are sent meanwhile.
    """
    total = 0
    args = {"group_id": group.id}
    for one in list_positions(session, group):
        total += skip_to(session, group, one.partition, one.end, reason)
    for statement in (_SQL.delete_waiting, _SQL.delete_unclaimed):
        while deleted := session.change(statement, args):
            total += deleted
    return total
