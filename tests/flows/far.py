"""The app of the tests on two servers: flows of one that call tasks of the other."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from emsworker import Ems, Reject, Transaction
from emsworker.flows import CallFailed, Flow
from tests.process.record import note

app = Ems("far")
HERE, THERE, MOVES = "main.flows", "east.work", "main.moves"


def effect(transaction: Transaction, n: int) -> int:
    transaction.execute("INSERT INTO effect (n, pid) VALUES (%s, %s)", (n, os.getpid()))
    return n


@app.task(topic=THERE, group="hands", transactional=True, max_attempts=5, ladder="50ms")
def book(transaction: Transaction, n: int) -> int:
    return effect(transaction, n)


@app.task(topic=THERE, group="hands")
def refuse(n: int) -> None:
    raise Reject(f"not {n}")


@app.task(topic=THERE, group="hands", max_attempts=1)
def crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(topic=MOVES, group="hands", transactional=True)
def book_moving(transaction: Transaction, n: int) -> int:
    return effect(transaction, n)


@app.task(topic=HERE, group="flows", transactional=True)
def book_here(transaction: Transaction, n: int) -> int:
    return effect(transaction, n)


@app.flow(topic=HERE, group="flows", max_attempts=20, ladder="50ms")
def travels(flow: Flow, n: int) -> Any:
    """Numbers from ``n``: 0 and 9 are booked here, 1 to 4 there, 5 is booked there by the call that undoes."""
    flow.transaction(effect, n)
    flow.call(book.s(n + 1))
    many = flow.gather([book.s(n + 2), book_here.s(n + 8), book.s(n + 3), book.s(n + 4)])
    try:
        flow.call(refuse.s(n))
    except CallFailed as error:
        flow.transaction(effect, n + 9)
        return [many, error.error_type, error.message]


@app.flow(topic=HERE, group="flows")
def undoes(flow: Flow, n: int) -> None:
    flow.undo(book.s(n))
    flow.call(refuse.s(n))


@app.flow(topic=HERE, group="flows")
def crashes(flow: Flow) -> str:
    try:
        flow.call(crash.s())
    except CallFailed as error:
        return error.error_type
    return "nothing"


@app.flow(topic=MOVES, group="flows")
def moves(flow: Flow, n: int) -> Any:
    """Waits, and calls; its topic moves meanwhile."""
    flow.transaction(effect, n)
    given = flow.wait_for("go")
    flow.call(book_moving.s(n + 1))
    flow.sleep(0.2)
    flow.transaction(effect, n + 2)
    note("ends", n=n)
    return given


@app.flow(topic=THERE, group="hands")
def elsewhere(flow: Flow) -> None:
    flow.step(note, "elsewhere")


@app.flow(topic=HERE, group="flows")
def calls_elsewhere(flow: Flow) -> None:
    flow.call(elsewhere.s())


@app.flow(topic=HERE, group="flows")
def calls_a_canvas(flow: Flow, n: int) -> Any:
    return flow.call(book.si(n) | book.si(n + 1))


@app.flow(topic=HERE, group="flows")
def calls_later(flow: Flow, n: int) -> Any:
    """Its call is not due before the topic of that has moved."""
    return flow.call(book_moving.s(n).set(countdown=3))


@app.flow(topic=HERE, group="flows")
def calls_nobody(flow: Flow) -> str:
    """Nobody runs its call."""
    try:
        flow.call(nobody.s())
    except CallFailed as error:
        return error.error_type
    return "nothing"


@app.task(topic="east.nobody", group="nobody")
def nobody() -> None:
    note("nobody")
    sys.exit(f"never run in {Path.cwd()}")
