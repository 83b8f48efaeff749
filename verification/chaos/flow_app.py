"""The app of the chaos with flows: every effect is a row whose number says which flow and which step it belongs to."""

from __future__ import annotations

import os
from typing import Any

from emsworker import Ems, Transaction
from emsworker.flows import Flow, chain, chord, group
from emsworker.flows.canvas.words import Canvas

app = Ems("flow-chaos")
CHAIN, GROUP, CHORD, CHILDREN, SIGNALS, SLEEPS, UNDOS = 20, 500, 1000, 3, 5, 5, 3
UNDO = 5_000
SPAN = 10_000
"""Numbers of one flow."""
_OPTIONS = {"max_attempts": 60, "ladder": "100ms"}  # deaths must not use them up


def _effect(transaction: Transaction, n: int) -> int:
    transaction.execute("INSERT INTO effect (n, pid) VALUES (%s, %s)", (n, os.getpid()))
    return n


@app.task(transactional=True, **_OPTIONS)
def book(transaction: Transaction, n: int) -> int:
    """Have an effect."""
    return _effect(transaction, n)


@app.flow(**_OPTIONS)
def steps(flow: Flow, n: int) -> None:
    """Steps of every kind, one after another."""
    for place in range(CHAIN):
        if place % 3 == 0:
            flow.call(book.s(n + place))
        else:
            assert flow.step(int, place) == place
            flow.transaction(_effect, n + place)


@app.flow(**_OPTIONS)
def fan(flow: Flow, n: int) -> None:
    """Many calls, and one join."""
    assert flow.gather(book.s(n + place) for place in range(GROUP)) == [n + place for place in range(GROUP)]
    flow.transaction(_effect, n + GROUP)


@app.flow(**_OPTIONS)
def child(flow: Flow, n: int, depth: int) -> int:
    """Flows that call flows."""
    if depth:
        flow.gather(child.s(n + place * 10**depth, depth - 1) for place in range(CHILDREN))
    return flow.transaction(_effect, n + depth * 1000)


@app.flow(**_OPTIONS)
def signals(flow: Flow, n: int) -> None:
    """Signals that race their waits."""
    for place in range(SIGNALS):
        assert flow.wait_for(f"signal {place}", timeout="10m") == place
        flow.transaction(_effect, n + place)


@app.flow(**_OPTIONS)
def sleeps(flow: Flow, n: int) -> None:
    """Short sleeps."""
    for place in range(SLEEPS):
        flow.sleep(0.05)
        flow.transaction(_effect, n + place)


@app.flow(max_attempts=1)
def refused(flow: Flow) -> None:
    """Fails at once."""
    raise ArithmeticError("refused")


@app.flow(**_OPTIONS)
def undoing(flow: Flow, n: int) -> None:
    """Fails after some steps that are to be undone."""
    for place in range(UNDOS):
        flow.transaction(_effect, n + place)
        flow.undo(book.s(n + UNDO + place))
    flow.call(refused.s())


def large(n: int) -> Canvas[Any]:
    """A chord whose header is large."""
    return chord([book.si(n + place) for place in range(CHORD)], book.si(n + CHORD))


def nested(n: int) -> Canvas[Any]:
    """Groups in chains in a chord in a chain."""
    pairs = [chain(book.si(n + 10 * place), book.si(n + 10 * place + 1)) for place in range(1, 4)]
    within = [group(book.si(n + 100 * place), book.si(n + 100 * place + 1)) for place in range(1, 4)]
    return chain(book.si(n), chord([*pairs, *within], book.si(n + 1)), group(book.si(n + 2), book.si(n + 3)))


def expected(name: str, n: int) -> list[int]:
    """The numbers of the effects of a flow; those of undoing come last, in their order."""
    if name == "nested":
        return [
            *range(n, n + 4),
            *(n + tens * place + one for tens in (10, 100) for place in (1, 2, 3) for one in (0, 1)),
        ]
    if name == "child":
        leaves = [n + first * 100 + second * 10 for first in range(CHILDREN) for second in range(CHILDREN)]
        return [*leaves, *(n + first * 100 + 1000 for first in range(CHILDREN)), n + 2000]
    if name == "undoing":
        return [*range(n, n + UNDOS), *(n + UNDO + place for place in reversed(range(UNDOS)))]
    count = {"steps": CHAIN, "fan": GROUP + 1, "large": CHORD + 1, "signals": SIGNALS, "sleeps": SLEEPS}[name]
    return [*range(n, n + count)]
