"""Flows that have ended are deleted after their time, with all that belongs to them."""

from pathlib import Path

from emsworker.core.config import Settings
from emsworker.flows.operating.retention import sweep_flows
from emsworker.local import LocalDatabase
from emsworker.store.engine.database import Database
from tests.process.stream import Stream
from tests.support.roles import users

_TABLES = ("ems_flow_step", "ems_flow_end", "ems_flow_signal", "ems_flow_value", "ems_flow_attribute")


def _flow(stream: Stream, number: int, state: str, age: str, ends: int) -> None:
    ended = f"NOW(6) - INTERVAL {age}" if state in ("done", "failed", "cancelled") else "NULL"
    stream.rows(
        "INSERT INTO ems_flow (id, `key`, name, version, topic_id, state, owner, headers, args, started_at, changed_at, "
        f"ended_at) VALUES (%s, %s, 'f', 1, 1, %s, '', '', '', NOW(6) - INTERVAL {age}, NOW(6) - INTERVAL {age}, {ended})",
        number,
        f"key-{number}",
        state,
    )
    stream.rows(
        "INSERT INTO ems_flow_step (flow_id, step, kind, name, began_at) VALUES (%s, 1, 'gather', 'g', NOW(6))", number
    )
    for begin in range(0, ends, 500):
        rows = ", ".join(f"({number}, 1, {place}, NOW(6))" for place in range(begin, min(begin + 500, ends)))
        stream.rows(f"INSERT INTO ems_flow_end (flow_id, step, number, ended_at) VALUES {rows}")
    stream.rows(
        "INSERT INTO ems_flow_signal (flow_id, uid, name, value, sent_at) VALUES (%s, 'u', 's', '1', NOW(6))", number
    )
    stream.rows("INSERT INTO ems_flow_value (flow_id, number, value, emitted_at) VALUES (%s, 1, '1', NOW(6))", number)
    stream.rows("INSERT INTO ems_flow_attribute (name, value, flow_id) VALUES ('a', 'b', %s)", number)


def _left(stream: Stream) -> dict[str, set[int]]:
    flows = {number for (number,) in stream.rows("SELECT id FROM ems_flow")}
    return {"ems_flow": flows} | {
        table: {number for (number,) in stream.rows(f"SELECT DISTINCT flow_id FROM {table}")} for table in _TABLES
    }


def test_what_ended_long_ago_is_deleted_in_bounded_parts(stream: Stream, server: LocalDatabase, tmp_path: Path) -> None:
    _flow(stream, 1, "done", "8 DAY", 2500)
    _flow(stream, 2, "failed", "8 DAY", 1)
    _flow(stream, 3, "cancelled", "6 DAY", 1)
    _flow(stream, 4, "waiting", "80 DAY", 1)
    with users(server, stream.url) as make, Database(make("beat")).session() as session:
        assert sweep_flows(session, Settings(flow_keep_s=0)) > 0
        assert _left(stream)["ems_flow"] == {1, 2, 3, 4}
        assert sweep_flows(session, Settings()) == 0, "there is more to delete"
        assert stream.rows("SELECT COUNT(*) FROM ems_flow_end WHERE flow_id = 1")[0][0] in (1500, 1501)
        assert stream.rows("SELECT COUNT(*) FROM ems_flow WHERE `key` IN ('key-1', 'key-2')") == [(0,)], (
            "nobody finds a part of it"
        )
        pauses = [sweep_flows(session, Settings()) for _ in range(5)]
        assert pauses[-1] > 0
        assert set(map(frozenset, _left(stream).values())) == {frozenset({3, 4})}
