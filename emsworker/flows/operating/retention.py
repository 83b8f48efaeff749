"""The service of the beat that deletes flows which ended long ago, with all that belongs to them.

A flow is marked first, from when on nobody finds it; then its rows are deleted, a bounded number at a time, its own row
last. A crash in between leaves marked flows, which the next run deletes.
"""

from __future__ import annotations

import logging

from emsworker.extending.database import Session, Sql, Statements
from emsworker.extending.declaration import pause_s
from emsworker.extending.settings import Settings
from emsworker.extending.values import counted

_SQL = Statements(__name__)
_FLOWS, _ROWS = 200, 1000
_OF_A_FLOW = (_SQL.delete_ends, _SQL.delete_steps, _SQL.delete_signals, _SQL.delete_values, _SQL.delete_attributes)

log = logging.getLogger(__name__)


def sweep_flows(session: Session, settings: Settings) -> float:
    """Delete flows that ended longer ago than ``flow_keep_s``, and those that were deleted by hand."""
    if settings.flow_keep_s:
        session.change(_SQL.mark_expired, {"keep_s": settings.flow_keep_s, "limit": _FLOWS})
    flows = [number for (number,) in session.rows(_SQL.list_deleted, {"limit": _FLOWS})]
    if not flows:
        return pause_s(0, _FLOWS, settings)
    if any([_delete(session, statement, flows) for statement in _OF_A_FLOW]):
        return 0.0
    deleted = session.change(_SQL.delete_flows, {"flows": flows})
    log.info("deleted %s that had ended", counted(deleted, "flow"))
    return pause_s(len(flows), _FLOWS, settings)


def _delete(session: Session, statement: Sql, flows: list[int]) -> bool:
    """Delete a bounded number of rows of some flows; true if there may be more."""
    return session.change(statement, {"flows": flows, "limit": _ROWS}) == _ROWS
