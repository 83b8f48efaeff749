"""The app of these tests: an order, with every word that a flow has. Effects are rows, in the database of the stream."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from emsworker import Ems, Transaction
from emsworker.flows import AsyncFlow, CallFailed, Flow
from tests.process.record import note

app = Ems("shop")


def _effect(transaction: Transaction, n: int) -> int:
    transaction.execute("INSERT INTO effect (n, pid) VALUES (%s, %s)", (n, os.getpid()))
    return n


@app.task(transactional=True, max_attempts=3, ladder="100ms")
def book(transaction: Transaction, n: int, fails: int = 0) -> int:
    return _effect(transaction, n)


@app.task(max_attempts=2, ladder="50ms")
def refuse(n: int) -> None:
    raise ValueError(f"no {n}")


@app.task(max_attempts=3, ladder="100ms")
def label(n: int) -> str:
    return f"L{n}"


@app.task
def undo(name: str) -> None:
    note("undo", name=name)


def charge(n: int) -> dict[str, int]:
    note("step", n=n)
    return {"charged": n}


@app.flow(ladder="200ms")
def order(flow: Flow, n: int, parcels: int = 3) -> dict[str, Any]:
    paid = flow.step(charge, n)
    flow.transaction(_effect, n)
    booked = flow.call(book.s(1_000_000 + n))
    labels = flow.gather(label.s(number) for number in range(parcels))
    handed_over = flow.wait_for("handed over", timeout="60s")
    flow.sleep(0.05)
    return {"paid": paid, "booked": booked, "labels": labels, "handed over": handed_over}


@app.flow(max_attempts=2, ladder="50ms")
def failing(flow: Flow, n: int, at: str) -> None:
    flow.undo(undo.s("first"))
    flow.step(charge, n)
    flow.undo(undo.s("second"))
    if at == "call":
        flow.call(refuse.s(n))
    if at == "step":
        flow.step(_fail)
    if at == "own":
        raise RuntimeError("out of luck")


def _fail() -> None:
    raise KeyError("no step")


@app.flow
def parent(flow: Flow, n: int) -> Any:
    good = flow.gather(child.s(n + place, False) for place in range(3))
    try:
        flow.call(child.s(n, True))
    except CallFailed as error:
        return [good, error.error_type, error.message]


@app.flow(max_attempts=1)
def child(flow: Flow, n: int, fails: bool) -> int:
    value = flow.call(label.s(n))
    if fails:
        raise ValueError(value)
    return flow.transaction(_effect, n)


def _linger(n: int) -> None:
    note("begin", n=n)
    try:
        while True:
            time.sleep(0.01)
    finally:
        note("left", n=n)


@app.task
def linger(n: int) -> None:
    _linger(n)


@app.flow
def lingering(flow: Flow, n: int) -> None:
    if n:
        flow.call(linger.s(n))
    flow.step(_linger, n)


@app.flow
async def side_by_side(flow: AsyncFlow, n: int) -> list[Any]:
    import asyncio

    async def one(number: int) -> Any:
        first = await flow.call(label.s(number))
        return [first, await flow.step(_double, number)]

    both = await asyncio.gather(*(one(number) for number in range(n)))
    return [*both, await flow.wait_for("go")]


async def _double(n: int) -> int:
    return n * 2


@app.flow(max_attempts=3, ladder="50ms")
def dying(flow: Flow, n: int) -> int:
    """Its process is killed in the middle, once for each step that is new."""
    flow.step(charge, n)
    flow.transaction(_effect, n)
    flow.step(_die_once, n)
    flow.transaction(_effect, n + 1)
    return n


def _die_once(n: int) -> None:
    note("dies", n=n)
    mark = Path(os.environ["EMS_TEST_RECORD"]) / f"died-{n}"
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


@app.flow
def mixed(flow: Flow) -> list[Any]:
    return flow.gather([waits.s(), label.s(1)])


@app.flow(priority=9)
def urgent(flow: Flow) -> int:
    flow.sleep(0.05)
    return flow.step(_identity, 1)


@app.flow
def steps(flow: Flow, count: int) -> int:
    for number in range(count):
        flow.step(_identity, number)
    return count


def _identity(number: int) -> int:
    return number


@app.flow
def fan(flow: Flow, count: int) -> int:
    return len(flow.gather(label.s(number) for number in range(count)))


@app.flow
def slow(flow: Flow, seconds: float) -> None:
    flow.step(time.sleep, seconds)
    flow.transaction(_effect, 77)


@app.task(max_attempts=1)
def crash(n: int) -> None:
    note("crash", n=n)
    os._exit(1)


@app.flow
def calls_a_crash(flow: Flow, n: int) -> str:
    try:
        flow.call(crash.s(n))
    except CallFailed as error:
        return error.error_type
    return "nothing"


@app.flow
def calls(flow: Flow, count: int) -> int:
    return sum(flow.call(book.s(number)) for number in range(count))


@app.flow
def waits(flow: Flow) -> Any:
    return flow.wait_for("go")


@app.flow
def telling(flow: Flow, count: int) -> int:
    for n in range(count):
        flow.emit({"n": n})
    return count


@app.flow
def telling_on(flow: Flow) -> None:
    flow.emit("before")
    flow.wait_for("go")
    flow.emit("after")


@app.flow
def noted(flow: Flow, n: int) -> int:
    return flow.transaction(_effect, n)


@app.flow
def middle(flow: Flow) -> Any:
    return flow.call(waits.s())


@app.flow
def grandparent(flow: Flow) -> Any:
    return flow.gather([middle.s(), waits.s()])


@app.task
def vanishes() -> None: ...


@app.flow(max_attempts=1)
def cannot_be_undone(flow: Flow) -> None:
    """The worker that undoes it does not know a task, as one of an earlier version."""
    flow.undo(undo.s("first"))
    flow.undo(vanishes.s())
    app.registry.route(vanishes.topic, vanishes.group).tasks.pop(vanishes.name, None)
    raise RuntimeError("out of luck")
