"""Flows on real servers, run by real workers."""

from emsworker import Ems
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
