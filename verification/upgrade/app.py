"""An app with a message of every kind. Each effect is a row, committed together with the end of its message."""

from __future__ import annotations

import os
import time

from emsworker import Ems, Transaction
from emsworker.flows import Flow

app = Ems("upgrade")
FIXED = "EMS_TEST_FIXED"
"""Set in the environment of workers on which nothing fails or takes long."""


def effect(transaction: Transaction, what: str, n: int) -> None:
    """Add a row that shows that a message was run."""
    transaction.execute("INSERT INTO effect (what, n) VALUES (%s, %s)", (what, n))


def _is_fixed() -> bool:
    return FIXED in os.environ


@app.task(topic="orders", transactional=True)
def pay(transaction: Transaction, n: int, seconds: float = 0) -> None:
    """Take some time where nothing is fixed."""
    if not _is_fixed():
        time.sleep(seconds)
    effect(transaction, "pay", n)


@app.task(topic="shaky", transactional=True, ladder="2s", max_attempts=200)
def shake(transaction: Transaction, n: int) -> None:
    """Fail, and be run again later."""
    if not _is_fixed():
        raise ConnectionError("not fixed")
    effect(transaction, "shake", n)


@app.task(topic="broken", transactional=True, max_attempts=1)
def break_down(transaction: Transaction, n: int) -> None:
    """Become a dead letter."""
    if not _is_fixed():
        raise ValueError("not fixed")
    effect(transaction, "break_down", n)


@app.task(topic="shares", transactional=True, fair="tenant")
def share(transaction: Transaction, n: int, tenant: str, seconds: float = 0) -> None:
    """Wait in the lane of a tenant."""
    if not _is_fixed():
        time.sleep(seconds)
    effect(transaction, "share", n)


@app.task(topic="parcels", transactional=True, order="key")
def ship(transaction: Transaction, n: int, seconds: float = 0) -> None:
    """Run after earlier messages of the same key."""
    if not _is_fixed():
        time.sleep(seconds)
    effect(transaction, "ship", n)


@app.task(topic="scans", transactional=True)
def scan(transaction: Transaction, n: int, picture: str) -> None:
    """Have a body that is kept beside the message."""
    effect(transaction, "scan", n + len(picture))


@app.task(topic="sums", result=True)
def add(x: int, y: int) -> int:
    """Have a result."""
    return x + y


@app.flow(max_attempts=200, ladder="1s")
def check_out(flow: Flow, n: int) -> int:
    """Have steps, a call and a pause."""
    flow.transaction(effect, "book", n)
    flow.call(pay.s(n))
    flow.sleep("6s")
    flow.transaction(effect, "close", n)
    return n


@app.periodic(every=1.0)
@app.task(topic="ticks", transactional=True)
def tick(transaction: Transaction) -> None:
    """Be called each second."""
    effect(transaction, "tick", 0)
