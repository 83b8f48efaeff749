"""Flows on real servers, run by real workers."""

import pytest

from emsworker import Ems
from emsworker.flows import FlowFailed
from tests.flows import shop as flows
from tests.flows.conftest import SHOP
from tests.process.stream import Stream
from tests.support.waiting import until


def test_an_order_comes_to_its_end(stream: Stream, shop: Ems) -> None:
    stream.worker(SHOP)
    order = flows.order.start(7, id="order-7")
    assert order.created and not flows.order.start(7, id="order-7").created
    until(lambda: order.state == "waiting" and _waits(stream, "order-7") == "signal handed over", 30, stream.logs())
    shop.signal("order-7", "handed over", {"to": "Ada"})
    assert order.get(30) == {
        "paid": {"charged": 7},
        "booked": 1_000_007,
        "labels": ["L0", "L1", "L2"],
        "handed over": {"to": "Ada"},
    }
    assert sorted(row[0] for row in stream.rows("SELECT n FROM effect")) == [7, 1_000_007]
    assert stream.record.numbers("step") == [7]


def _waits(stream: Stream, key: str) -> str | None:
    return stream.rows("SELECT waits FROM ems_flow WHERE `key` = %s", key)[0][0]


def test_a_call_that_kills_its_worker_fails_in_its_flow(stream: Stream, shop: Ems) -> None:
    stream.worker(SHOP)
    assert flows.calls_a_crash.start(1).get(60) == "WorkerLost"


def test_a_flow_whose_process_is_killed_goes_on_where_it_was(stream: Stream, shop: Ems) -> None:
    stream.worker(SHOP)
    assert flows.dying.start(5).get(60) == 5
    assert stream.record.numbers("step") == [5], "the step before the crash is not run again"
    assert sorted(row[0] for row in stream.rows("SELECT n FROM effect")) == [5, 6]


def test_failures_undo_and_children(stream: Stream, shop: Ems) -> None:
    stream.worker(SHOP)
    with pytest.raises(FlowFailed, match=r"CallFailed: .*refuse failed: ValueError: no 3"):
        flows.failing.start(3, "call").get(60)
    assert [one["name"] for one in stream.record.events("undo")] == ["second", "first"]
    assert flows.parent.start(10).get(60) == [[10, 11, 12], "ValueError", "L10"]


def test_coroutines_side_by_side(stream: Stream, shop: Ems) -> None:
    stream.worker(SHOP)
    flow = flows.side_by_side.start(4, id="side")
    shop.signal("side", "go", 1)
    assert flow.get(60) == [[f"L{n}", 2 * n] for n in range(4)] + [1]


def test_a_wake_that_is_lost_is_sent_again(stream: Stream, shop: Ems) -> None:
    with shop.transaction():
        pass
    flow = flows.fan.start(3, id="fan")
    stream.run("DELETE FROM ems_outbox")
    stream.run("DELETE FROM ems_message")
    stream.run("UPDATE ems_flow SET changed_at = NOW(6) - INTERVAL 1 HOUR")
    stream.worker(SHOP)
    assert flow.get(60) == 3


def test_a_cancelled_flow_runs_nothing_more(stream: Stream, shop: Ems) -> None:
    with shop.transaction():
        pass
    flow = flows.parent.start(1, id="p")
    worker = stream.worker(SHOP, topics=["default"])
    until(lambda: stream.one("SELECT COUNT(*) FROM ems_flow") == 4, 30, stream.logs())
    worker.kill_all()
    assert flow.cancel() and not flow.cancel()
    assert set(stream.rows("SELECT state FROM ems_flow")) <= {("cancelled",), ("done",)}
    stream.worker(SHOP)
    stream.wait_settled(60)
    assert set(stream.rows("SELECT state FROM ems_flow")) <= {("cancelled",), ("done",)}
    assert flow.retry() and flow.get(60) == [[1, 2, 3], "ValueError", "L1"]


def test_a_cancelled_flow_interrupts_its_step_and_its_calls(stream: Stream, shop: Ems) -> None:
    stream.worker(SHOP, topics=["default"], threads=4)
    started = [flows.lingering.start(n) for n in range(2)]
    until(lambda: stream.record.numbers("begin") == [0, 1], 30, stream.logs())
    assert all(flow.cancel() for flow in started)
    until(lambda: stream.record.numbers("left") == [0, 1], 10, stream.logs())
    stream.wait_settled(30)
    assert [flow.state for flow in started] == ["cancelled"] * 2
    assert stream.rows("SELECT DISTINCT outcome FROM ems_attempt") == [("cancelled",)]
    assert stream.rows("SELECT * FROM ems_dead") == []


@pytest.mark.slow
def test_a_flow_that_cannot_be_undone_fails_for_good(stream: Stream, shop: Ems) -> None:
    stream.worker(SHOP)
    with pytest.raises(FlowFailed, match=r"out of luck; not all was undone: .*vanishes"):
        flows.cannot_be_undone.start().get(100)
    assert not stream.record.events("undo")
