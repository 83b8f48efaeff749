"""Arguments and values of flows and canvases by annotations."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from emsworker import Ems
from emsworker.core.errors import WrongArguments
from emsworker.flows import AsyncFlow, Flow, FlowFailed, chain, chord, group
from emsworker.tasks.annotations import Types
from emsworker.testing import TestApp
from tests.process.stream import Stream

app = Ems("typedflows")


class Order(BaseModel):
    model_config = ConfigDict(strict=True)
    day: date
    prices: tuple[Decimal, ...]


class Bill(BaseModel):
    day: date
    total: Decimal


ORDER = Order(day=date(2026, 3, 1), prices=(Decimal("1.10"), Decimal("2.20")))
BILL = Bill(day=date(2026, 3, 1), total=Decimal("3.30"))
said: list[object] = []


@app.task
def total(order: Order) -> Bill:
    return Bill(day=order.day, total=sum(order.prices, Decimal(0)))


@app.task
def due(bill: Bill, within: timedelta = timedelta(days=1)) -> date:
    return bill.day + within


@app.task
def biggest(bills: list[Bill]) -> Bill:
    return max(bills, key=lambda bill: bill.total)


@app.task(max_attempts=1)
def wrong(order: Order) -> int:
    return 7


@app.task
def say(bill: Bill, day: date) -> None:
    said.append((bill, day))


def load(order: Order) -> Order:
    said.append(order)
    return order


@app.flow
def inner(flow: Flow, order: Order) -> Bill:
    return flow.call(total.s(order))


@app.flow
def outer(flow: Flow, order: Order, within: timedelta) -> tuple[Bill, date]:
    assert flow.step(load, order) == order
    bill, other = flow.gather([total.s(order), inner.s(order)])
    assert bill == other == BILL == flow.call(chain(total.s(order)))
    flow.undo(say.s(bill, bill.day))
    return bill, flow.call(due.s(bill, within))


@app.flow
async def aouter(flow: AsyncFlow, order: Order) -> Bill:
    assert await flow.step(load, order) == order
    (bill,) = await flow.gather([total.s(order)])
    assert bill == await flow.call(inner.s(order))
    await flow.sleep("1s")
    return bill


@app.flow(max_attempts=1)
def failing(flow: Flow, order: Order) -> None:
    flow.undo(say.s(BILL, ORDER.day))
    flow.call(wrong.s(order))
    raise ValueError("meant to fail")


@pytest.fixture
def test() -> Iterator[TestApp]:
    said.clear()
    with app.test() as test:
        yield test


def test_flows_get_objects_and_give_them(test: TestApp) -> None:
    handles: list[Any] = [outer.start(ORDER, within=timedelta(days=2), id="a"), aouter.start(ORDER, id="b")]
    late: Any = outer.delay(ORDER, timedelta(days=2))
    test.run()
    assert not test.dead, test.dead
    assert [handle.get(1) for handle in handles] == [(BILL, date(2026, 3, 3)), BILL]
    assert app.find_flow("a").get(1) == app.find_flow(late.id).get(1) == (BILL, date(2026, 3, 3))
    assert said == [ORDER] * 3, "a step is run once, and its value is built in every run"
    with pytest.raises(WrongArguments, match=r"within = 'soon' does not fit datetime.timedelta"):
        outer.start(ORDER, "soon")
    assert not outer.start(ORDER, within=timedelta(days=2), id="a").created


def test_what_was_undone_gets_objects(test: TestApp) -> None:
    handle = failing.start(ORDER)
    test.run()
    assert handle.failed and said == [(BILL, ORDER.day)]


def test_values_of_a_canvas_are_built_for_the_next_part_and_for_the_caller(test: TestApp) -> None:
    def value_of(canvas: object, *args: object) -> object:
        handle = canvas.delay(*args)  # type: ignore[attr-defined]
        test.run()
        return handle.get(1)

    assert value_of(total.s(ORDER) | due.s(timedelta(days=2))) == date(2026, 3, 3)
    assert value_of(chain(total.s(), due.s()), ORDER) == date(2026, 3, 2)
    parts: list[Any] = [total.s(ORDER), due.s(BILL)]
    both: group[Any] = group(parts)
    assert value_of(both) == [BILL, date(2026, 3, 2)]
    assert value_of(chord([total.s(ORDER), total.s(ORDER)], biggest.s())) == BILL
    assert value_of(chain(total.map([ORDER, ORDER]))) == [BILL, BILL]
    assert value_of(chain(total.map([ORDER])) | biggest.s()) == BILL
    assert value_of(group(group(total.s()), total.s().set(priority=None)), ORDER) == [[BILL], BILL]  # type: ignore[misc]
    with pytest.raises(WrongArguments, match=r"cannot be called with these arguments: order\.day = .* does not fit"):
        (total.s({"day": "never", "prices": []}) | due.s()).delay()
    with pytest.raises(FlowFailed, match=r"WrongArguments: task .*due' cannot be called .*: bill = 7 does not fit"):
        value_of(wrong.s(ORDER) | due.s())


def test_a_flow_whose_arguments_cannot_be_built_fails_at_once(test: TestApp) -> None:
    handle = inner.start(ORDER)
    types, inner._types_by_version[1] = inner.types_of(1), newer_types()
    try:
        test.run()
        with pytest.raises(FlowFailed, match=r"DecodeError: the arguments of task .* cannot be built: order = "):
            handle.get(1)
        assert len(test.dead) == 1 and test.dead[0].attempt == 1
    finally:
        inner._types_by_version[1] = types
    app.publisher.send("default", [["x"], {}], headers={"ems-task": inner.name})
    test.run()
    assert len(test.dead) == 2 and test.dead[1].attempt == 1
    assert "starts no flow: task" in test.dead[1].reason and "order = 'x' does not fit" in test.dead[1].reason


def newer_types() -> Types:
    def newer(flow: Flow, order: date) -> None: ...

    return inner.read_types(newer)


def test_on_a_server(stream: Stream) -> None:
    before = app.settings.url
    app.reconfigure(url=stream.url)
    try:
        stream.worker("tests.flows.test_typed:app")
        handle = outer.start(ORDER, timedelta(days=2))
        canvas = chord([total.s(ORDER)] * 3, biggest.s()).delay()
        with app.transaction() as transaction:
            receipt = outer.apply_async((ORDER, timedelta(days=2)), transaction=transaction)
        assert handle.get(60) == (BILL, date(2026, 3, 3)), stream.logs()
        assert canvas.get(60) == BILL
        assert app.find_flow(receipt.id).get(60) == (BILL, date(2026, 3, 3))
    finally:
        app.close()
        app.reconfigure(url=before)
