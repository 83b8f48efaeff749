"""Changes of flows as messages of a topic, for Spark and other readers of topics.

There are none unless somebody has created the topic. A message is sent by the transaction that changes the flow, so
there is one if and only if that was committed; all of a flow have the same key, and so their order.
"""

from __future__ import annotations

from emsworker.extending.database import Sql, Statements, fill, literals
from emsworker.extending.values import new_uid

EVENTS_TOPIC = "ems.flow-events"
_EVENT = """t.id, UTC_TIMESTAMP(6), NULL, %(uid)s, CAST(f.id AS CHAR), f.state, '', CONVERT(JSON_OBJECT(
  'flow', f.`key`, 'name', f.name, 'version', f.version, 'state', f.state, 'waits', f.waits, 'error', f.error_type,
  'run', f.run, 'started_at', REPLACE(CAST(f.started_at AS CHAR), ' ', 'T'),
  'at', REPLACE(CAST(f.changed_at AS CHAR), ' ', 'T')) USING utf8mb4), 'flows', UTC_TIMESTAMP(6), 0
FROM %(database)s.ems_flow f JOIN %(database)s.ems_topic t ON t.name = 'ems.flow-events'"""
_SQL = Statements(__name__, event=_EVENT)


def send_event(database: Sql, flow_id: int) -> Sql:
    """Return the statement that tells of a change of a flow, which was made just before."""
    return fill(_SQL.send_event, {**literals({"flow_id": flow_id, "uid": new_uid()}), "database": database})


def send_started(database: Sql, key: str, owner: bytes) -> Sql:
    """Return the statement that tells of a flow that was started just before."""
    return fill(_SQL.send_started, {**literals({"key": key, "owner": owner, "uid": new_uid()}), "database": database})
