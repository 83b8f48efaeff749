"""The message that runs a flow which was woken."""

from __future__ import annotations

from emsworker.extending.database import Sql, Statements, fill, literals

_SQL = Statements(__name__)
WAKE = _SQL.send_wake
"""The statement of :func:`send_wake`, with its parameters."""


def send_wake(database: Sql, flow_id: int, owner: bytes) -> Sql:
    """Return the statement that sends the message of a flow that was woken just before.

    Args:
        owner: uid of the message, which the flow has from now on.
    """
    return fill(_SQL.send_wake, {**literals({"flow_id": flow_id, "owner": owner}), "database": database})
