# pyright: strict
"""What a user writes, and what a type checker knows of it."""

from collections.abc import Coroutine
from datetime import datetime
from typing import Any, assert_type

from emsworker import (
    AsyncResult,
    BoundTask,
    Cancelled,
    Ems,
    Message,
    PreparedTask,
    Receipt,
    ResultSet,
    Task,
    TaskFailed,
    Transaction,
)
from emsworker.flows import AsyncFlow, CallFailed, Flow, FlowHandle, chain, chord, chunks, group

app = Ems("shop")


@app.task
def add(x: int, y: int = 0) -> int:
    """Keeps its documentation."""
    return x + y


@app.task(topic="mail", group="mailers", ladder="1s 5s", result=True, order="key", priority=3)
def name_of(number: int, *, upper: bool = False) -> str:
    return str(number).upper() if upper else str(number)


@app.task(bind=True, max_attempts=3)
def retried(self: BoundTask, address: str) -> float:
    assert_type(self.request.attempt, int)
    return self.request.time_left


@app.task(bind=True)
def bound_without_a_type(self, address: str) -> float:  # type: ignore[no-untyped-def]
    return 1.0


@app.task(transactional=True)
def book(transaction: Transaction, account: str, amount: int) -> None:
    transaction.execute("UPDATE account SET balance = balance + %s WHERE name = %s", (amount, account))


@app.task(bind=True, transactional=True)
def rebook(self: BoundTask, transaction: Transaction, account: str) -> list[str]:
    return [account]


@app.task(batch=100)
def store(messages: list[Message]) -> None: ...


@app.task
async def ask(number: int) -> dict[str, int]:
    return {"n": number}


@app.task(concurrency=200, hard_time_limit_s=10, bind=True)
async def ask_bound(self: BoundTask, number: int) -> bytes:
    return b""


@app.periodic(every=5, args=[1])
@app.task
def tick(count: int) -> None: ...


@app.subscribe("orders", group="billing", timeout_s=300)
def bill(message: Message) -> None: ...


@app.subscribe("orders", group="billing", timeout_s=300)
async def bill_many(message: Message) -> None: ...


@app.subscribe("orders", group="ledger", transactional=True)
def ledger(transaction: Transaction, message: Message) -> None: ...


@app.subscribe("orders", group="journal", transactional=True, batch=500)
def journal(transaction: Transaction, messages: list[Message]) -> None: ...


@app.subscribe("news", broadcast=True, name="cache")
def forget(message: Message) -> None: ...


def tasks_keep_the_signatures_of_their_functions() -> None:
    assert_type(add(2, y=3), int)
    assert_type(add.delay(2, y=3), Receipt[int])
    assert_type(name_of.delay(2, upper=True), Receipt[str])
    assert_type(retried.delay("ada"), Receipt[float])
    assert_type(bound_without_a_type.delay("ada"), Receipt[float])
    assert_type(book.delay("ada", amount=3), Receipt[None])
    assert_type(rebook.delay("ada"), Receipt[list[str]])
    assert_type(ask.delay(4), Receipt[dict[str, int]])
    coroutine = assert_type(ask(4), Coroutine[Any, Any, dict[str, int]])
    coroutine.close()
    assert_type(ask_bound.delay(number=4), Receipt[bytes])
    store.delay("anything", it="takes")
    assert_type(tick.delay(1), Receipt[None])
    takes_any_task(add)
    takes_any_task(book)
    takes_such_a_task(add)


def takes_any_task(task: Task) -> str:
    return task.name


def takes_such_a_task(task: Task[[int, int], int]) -> Receipt[int]:
    return task.delay(1, 2)


def options_are_checked() -> None:
    prepared = add.using(key="a", expires=60, countdown=1.5, headers={"trace": "1"}, priority=3, topic="other")
    assert_type(prepared.delay(1, y=2), Receipt[int])
    takes_prepared(add.using(eta=datetime.now(), transaction=object()))
    assert_type(add.apply_async((1, 2), expires=3.0, task_id="u", delay="5m"), Receipt[int])
    app.send("orders", {"n": 1}, key="a", tag=b"t", delay="10m", uid=None)
    assert_type(app.send_task("far.away", [1], {"n": 2}, topic="far", group="g", expires=3.0), Receipt[Any])
    app.send_many("orders", [1, 2], dedup_key="k", dedup_window="1h")


def takes_prepared(prepared: PreparedTask[[int, int], int]) -> None:
    assert_type(prepared.delay(1, 2), Receipt[int])


def results_know_what_the_task_returns() -> None:
    assert_type(app.result(add.delay(1)), AsyncResult[int])
    assert_type(app.result(add.delay(1)).get(timeout=1), int)
    assert_type(app.result("id").get(), Any)
    assert_type(app.results([add.delay(1), add.delay(2)]), ResultSet[int])
    assert_type(app.results([add.delay(1)]).get(), list[int])
    assert_type(app.results([add.delay(1)]).get(raises=False), list[int | TaskFailed | Cancelled])
    assert_type(app.results([add.delay(1)])[0], AsyncResult[int])
    receipts: list[Receipt] = [add.delay(1), name_of.delay(2)]
    assert_type(app.results(receipts).get(), list[Any])


async def coroutines_know_it_too() -> None:
    receipt = await add.adelay(1, 2)
    assert_type(receipt, Receipt[int])
    assert_type(await app.result(receipt).aget(timeout=1), int)
    assert_type(await add.using(key="a").adelay(1), Receipt[int])
    assert_type(await ask.adelay(1), Receipt[dict[str, int]])
    assert_type(await app.asend("orders", 1, key="a"), Receipt)
    assert_type(await app.asend_many("orders", [1], transaction=None), list[Receipt])
    assert_type(await app.results([receipt]).aget(), list[int])


# -- flows -------------------------------------------------------------------------------------------------------------


def charge(customer: str, cents: int) -> dict[str, int]:
    return {customer: cents}


def write_down(transaction: Transaction, cents: int) -> int:
    return cents


async def look_up(name: str) -> float:
    return 1.5


@app.flow
def checkout(flow: Flow, customer: str) -> list[str]:
    assert_type(flow.step(charge, customer, cents=3), dict[str, int])
    assert_type(flow.transaction(write_down, 3), int)
    assert_type(flow.call(add.s(1, y=2)), int)
    assert_type(flow.gather(name_of.s(n) for n in range(3)), list[str])
    assert_type(flow.gather([add.s(1)], errors=True), list[int | CallFailed])
    assert_type(flow.call(add.s(1) | name_of.s()), str)
    assert_type(flow.gather([group(add.s(1)), group(add.s(2))]), list[list[int]])
    flow.undo(add.s(1))
    flow.undo(add.s(1) | name_of.s())
    flow.sleep("1d")
    return flow.call(side_by_side.s("ada"))


@app.flow(version=2, max_attempts=3)
async def side_by_side(flow: AsyncFlow, customer: str) -> list[str]:
    assert_type(await flow.step(look_up, customer), float)
    assert_type(await flow.step(charge, customer, 3), dict[str, int])
    assert_type(await flow.call(add.s(1)), int)
    return await flow.gather(name_of.s(n) for n in range(3))


@app.task
def total(numbers: list[int]) -> float:
    return sum(numbers)


def canvases_know_what_they_give() -> None:
    assert_type((add.s(1, 2) | name_of.s()).delay(), FlowHandle[str])
    assert_type(chain(add.s(1, 2), add.s(1), name_of.s()).apply_async(), FlowHandle[str])
    assert_type(group(add.s(n, n) for n in range(3)).delay().get(), list[int])
    assert_type(group(add.s(1), add.s(2)), group[int])
    assert_type(chord([add.s(1, 2)], total.s()).delay(), FlowHandle[float])
    assert_type((group(add.s(1, 2)) | total.s()).on_error(name_of.si(1)).delay(), FlowHandle[float])
    assert_type(chain(total.map([[1], [2, 3]])).delay().get(), list[float])
    assert_type(chunks(add, [(1, 2)], 10).delay().get(), list[list[int]])
    assert_type(add.chunks([(1, 2)], 10), group[list[int]])


def flows_know_what_they_return() -> None:
    assert_type(checkout.start("ada", id="a", transaction=object()).get(timeout=3), list[str])
    assert_type(side_by_side.start("ada", attributes={"customer": 17}, timeout="7d").get(), list[str])
    assert_type(add.delay_many([(1, 2), (3, 4)]), list[Receipt[int]])
