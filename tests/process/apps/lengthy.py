"""An app whose handlers ask for more time and tell how far they have come."""

import asyncio
import time
from typing import Any

import pymysql

from emsworker import Ems, Message, Middleware, RunEnded, SoftTimeLimitExceeded
from tests.process.record import note

TIMEOUT_S = 1.5  # longer than a write of a loaded machine takes


class Mourner(Middleware):
    """It hears of dead letters whose own process could not call it, too."""

    def on_dead(self, message: Message, group: str, error: BaseException, reason: str) -> None:
        note("dead", n=message.body["n"], group=group, error=type(error).__name__, reason=reason)


app = Ems("lengthy", timeout_s=TIMEOUT_S, ladder="100ms", max_attempts=2, jitter=0.0, middleware=[Mourner()])


@app.task(name="work", topic="works", group="a", bind=True, result=True)
def work(self: Any, n: int, s: float, extends: bool) -> str:
    request = self.request
    note("begin", n=n, left=request.time_left)
    deadline = time.monotonic() + s
    while (left := deadline - time.monotonic()) > 0:
        if extends:
            request.extend(TIMEOUT_S)
            request.report_progress(1 - left / s, f"{left:.1f} s to go")
        time.sleep(0.05)
    note("end", n=n, left=request.time_left)
    return "done"


@app.task(name="await", topic="awaits", group="a", bind=True, soft_time_limit_s=TIMEOUT_S / 2)
async def wait(self: Any, n: int, s: float, extends: bool) -> None:
    request = self.request
    note("begin", n=n, left=request.time_left)
    deadline = time.monotonic() + s
    while (left := deadline - time.monotonic()) > 0:
        if extends and n % 2:
            await asyncio.to_thread(request.extend, TIMEOUT_S)
        elif extends:
            request.extend(TIMEOUT_S)
        request.report_progress(text=f"coroutine {n}")
        await asyncio.sleep(min(0.05, left))
    note("end", n=n)


@app.subscribe("softs", "a", soft_time_limit_s=0.3, hard_time_limit_s=0.8, timeout_s=30, max_attempts=1)
def soft(message: Message) -> None:
    message.run.extend(message.body["more"])
    note("begin", n=message.body["n"], left=message.run.time_left)
    began = time.monotonic()
    try:
        while True:
            time.sleep(0.01)
    except SoftTimeLimitExceeded:
        note("soft", n=message.body["n"], after=time.monotonic() - began, left=message.run.time_left)
    if message.body.get("stays"):
        time.sleep(30)


_limited: set[int] = set()


@app.subscribe("cuts", "a", transactional=True, soft_time_limit_s=0.05, timeout_s=30, max_attempts=100, ladder="10ms")
def cut(transaction: Any, message: Message) -> None:
    """Catch the limit amid the exchanges with the server, and go on as if nothing had happened."""
    n = message.body["n"]
    transaction.execute("INSERT INTO effect (n, pid) VALUES (%s, 0)", (n,))
    try:
        while n not in _limited:
            transaction.execute("SELECT 'foreign'").fetchall()
    except SoftTimeLimitExceeded:
        _limited.add(n)
    try:
        found = transaction.execute("SELECT %s", (n,)).fetchall()
    except pymysql.MySQLError as error:
        note("lost", n=n, error=str(error))
        return
    note("found", n=n, is_own=found == ((n,),))


@app.subscribe("lates", "a", timeout_s=0.4)
def late(message: Message) -> None:
    note("begin", n=message.body["n"])
    if message.attempt > 1:
        return
    time.sleep(0.8)
    try:
        message.run.extend(10)
    except RunEnded:
        note("ended", n=message.body["n"], left=message.run.time_left)


@app.subscribe("moved", "a", transactional=True)
def moved(transaction: Any, message: Message) -> None:
    transaction.execute("INSERT INTO effect (n, pid) VALUES (%s, 0)", (message.body["n"],))
    for step in range(10):
        message.run.extend(TIMEOUT_S)
        message.run.report_progress(step / 10)
        time.sleep(TIMEOUT_S / 8)


@app.subscribe("keyed", "a", order="key")
def keyed(message: Message) -> None:
    for _ in range(8):
        message.run.extend(TIMEOUT_S)
        message.run.report_progress(text=str(message.key))
        time.sleep(TIMEOUT_S / 6)
    note("end", n=message.body["n"])
