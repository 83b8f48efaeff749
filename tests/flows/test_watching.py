"""The beat's look at flows that wait costs the same, however many there are."""

from __future__ import annotations

from emsworker import Ems
from emsworker.core.config import Settings
from emsworker.flows.operating.watching import WatchFlows
from emsworker.store.engine.database import Database
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Sql
from tests.flows import shop as flows
from tests.process.stream import Stream
from tests.support.waiting import until

_LATER, _OVER = "NOW(6) + INTERVAL 1 DAY", "NOW(6) - INTERVAL 5 MINUTE"


def _sleeping(stream: Stream, numbers: range, due_at: str) -> None:
    flows = ", ".join(
        f"({n}, 'key-{n}', 'f', 1, 1, 'waiting', {n}, '', '', NOW(6) - INTERVAL 1 HOUR, NOW(6) - INTERVAL 1 HOUR)"
        for n in numbers
    )
    stream.run(
        "INSERT INTO ems_flow (id, `key`, name, version, topic_id, state, owner, headers, args, started_at, changed_at) "
        f"VALUES {flows}"
    )
    steps = ", ".join(f"({n}, 1, 'sleep', 'sleep', {due_at}, NOW(6) - INTERVAL 1 HOUR)" for n in numbers)
    stream.run(f"INSERT INTO ems_flow_step (flow_id, step, kind, name, due_at, began_at) VALUES {steps}")


def _statements(session: Session) -> int:
    """Return how many statements a round of the service makes."""

    def asked() -> int:
        return int(session.rows(Sql("SHOW SESSION STATUS LIKE 'Questions'"))[0][1])

    before = asked()
    WatchFlows(pause_s=0.0)(session, Settings())
    return asked() - before


def test_a_page_of_flows_that_sleep_costs_as_much_as_one(stream: Stream) -> None:
    _sleeping(stream, range(1, 2), _LATER)
    with Database(stream.url).session() as session:
        one = _statements(session)
        _sleeping(stream, range(2, 501), _LATER)
        assert _statements(session) == one


def test_those_whose_time_has_come_are_woken(stream: Stream) -> None:
    _sleeping(stream, range(1, 100), _LATER)
    _sleeping(stream, range(100, 103), _OVER)
    with Database(stream.url).session() as session:
        WatchFlows(pause_s=0.0)(session, Settings())
    assert [n for (n,) in stream.rows("SELECT id FROM ems_flow WHERE state = 'ready' ORDER BY id")] == [100, 101, 102]


def test_a_flow_among_calls_of_tasks_is_not_lost_while_it_waits(stream: Stream, shop: Ems) -> None:
    stream.worker("tests.flows.shop:app")
    handle = flows.mixed.start(id="m")
    until(lambda: stream.one("SELECT COUNT(*) FROM ems_flow_end") == 1, 60, stream.logs())
    until(lambda: stream.rows("SELECT 1 FROM ems_flow WHERE waits LIKE 'signal%%'"), 60, stream.logs())
    with Database(stream.url).session() as session:
        WatchFlows(quiet_s=0.0, pause_s=0.0)(session, Settings(url=stream.url))
    assert stream.one("SELECT COUNT(*) FROM ems_flow_end") == 1
    shop.signal("m/1.0", "go", 5)
    assert handle.get(60) == [5, "L1"]
