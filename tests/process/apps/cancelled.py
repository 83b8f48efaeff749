"""An app whose handlers run until they are cancelled."""

import asyncio
import contextlib
import time
from typing import Any

from emsworker import Ems, Message, RunCancelled
from tests.process.record import note

app = Ems("cancelled", timeout_s=60, ladder="100ms", max_attempts=3, jitter=0.0)


def _spin(n: int) -> None:
    """Do what many handlers do: go on after every error."""
    note("begin", n=n)
    while True:
        with contextlib.suppress(Exception):
            time.sleep(0.01)


@app.task(name="spin", topic="runs", group="a", result=True)
def spin(n: int) -> None:
    try:
        _spin(n)
    finally:
        note("left", n=n)


@app.task(name="swallow", topic="runs", group="a", result=True)
def swallow(n: int) -> str:
    with contextlib.suppress(RunCancelled):
        _spin(n)
    note("left", n=n)
    return "as if nothing had happened"


@app.task(name="look", topic="runs", group="a", bind=True, on_cancel="flag")
def look(self: Any, n: int) -> None:
    note("begin", n=n)
    while not self.cancelled:
        time.sleep(0.01)
    note("left", n=n)
    raise ValueError("its own end")


@app.task(name="transact", topic="runs", group="a", transactional=True, result=True)
def transact(transaction: Any, n: int) -> None:
    transaction.execute("INSERT INTO effect (n, pid) VALUES (%s, 0)", (n,))
    note("begin", n=n)
    with contextlib.suppress(RunCancelled):
        while True:
            transaction.execute("SELECT SLEEP(0.001)").fetchall()
    note("left", n=n)


@app.task(name="wait", topic="runs", group="a", result=True)
async def wait(n: int) -> None:
    note("begin", n=n)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        note("left", n=n)
        raise


@app.subscribe("lined", "a", order="partition")
def lined(message: Message) -> None:
    if message.body["n"] == 0:
        _spin(0)
    note("end", n=message.body["n"])


@app.subscribe("keyed", "a", order="key")
def keyed(message: Message) -> None:
    if message.body["n"] == 0:
        _spin(0)
    note("end", n=message.body["n"])


@app.task(name="tick", topic="ticks", group="a", result=True)
def tick(n: int) -> int:
    for _ in range(25):
        note("tick", n=n)
        time.sleep(0.02)
    return n
