"""An app whose groups run several tasks: one in no order, one in the order of keys."""

import asyncio
import logging
import time

from emsworker import Ems, Reject
from tests.process.record import note

app = Ems("by_task", topic="mixed", group="g")


@app.task(name="burn")
def burn(n: int) -> None:
    until = time.thread_time() + 0.02
    while time.thread_time() < until:
        pass
    note("end", n=n)


@app.task(name="sleep")
async def sleep(n: int) -> None:
    await asyncio.sleep(0.01)
    note("end", n=n)


@app.task(name="fail")
def fail(n: int) -> None:
    note("end", n=n)
    raise Reject(f"no {n}: mysql://u:secret@host/x")


@app.task(name="slow")
def slow(n: int) -> None:
    time.sleep(0.002)
    note("slow", n=n)


@app.task(name="quick")
def quick(n: int) -> None:
    note("quick", n=n)


@app.task(name="talk")
def talk(n: int, for_s: float = 0.0) -> None:
    log = logging.getLogger("shop")
    for line in range(20):
        log.warning("line %d of %d", line, n)
    log.error("mysql://u:secret@host/x is away\x1b[31m")
    note("talked", n=n)
    time.sleep(for_s)
    if n == 1:
        raise ValueError("no")


@app.task(name="atalk")
async def atalk(n: int) -> None:
    logging.getLogger("shop").warning("first %d", n)
    await asyncio.sleep(0.05)
    logging.getLogger("shop").warning("second %d", n)
    note("atalked", n=n)


@app.task(name="keyed.slow", topic="keyed", group="k", order="key")
def keyed_slow(n: int, key: str) -> None:
    note("keyed", n=n, key=key)


@app.task(name="keyed.quick", topic="keyed", group="k", order="key")
def keyed_quick(n: int, key: str) -> None:
    note("keyed", n=n, key=key)
