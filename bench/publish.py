"""Publishing through ``Ems.send`` and ``Ems.send_many``, every message confirmed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from bench import worker
from bench.app import Tasks, build
from bench.consume import wait_until_drained
from bench.load import BODY, PAUSE_S, percentile, rate
from bench.stage import Stage
from emsworker import Receipt

_BATCH = 500


def _check(stage: Stage, count: int) -> None:
    """Everything that was confirmed is there, once, and the offsets have no holes."""
    stage.check("messages", count, "SELECT COUNT(*) FROM ems_message WHERE `offset` > 0")
    stage.check("highest offset", count, "SELECT MAX(`offset`) FROM ems_message WHERE `offset` > 0")
    stage.check("different uids", count, "SELECT COUNT(DISTINCT uid) FROM ems_message WHERE `offset` > 0")


def send(threads: int) -> Callable[[Stage], dict[str, float]]:
    """So many threads of one process call ``send``."""
    return lambda stage: _rate(stage, threads, lambda tasks: [tasks.app.send("events", BODY)])


def delay(stage: Stage) -> dict[str, float]:
    """One caller of a task."""
    return _rate(stage, 1, lambda tasks: [tasks.noop.delay(BODY)])


def delay_beside_worker(stage: Stage) -> dict[str, float]:
    """One caller of a task, while a worker on the same processors runs what is sent."""
    tasks = build(url=stage.url)
    tasks.noop.delay(0)
    with worker.running(stage, worker.Shape(tasks.noop.topic)):
        per_s, count = rate(stage.size.seconds, 1, lambda number: lambda: len([tasks.noop.delay(BODY)]))
        wait_until_drained(stage, count + 1)
    tasks.app.close()
    _check(stage, count + 1)
    return {"messages/s": per_s}


def send_many(stage: Stage) -> dict[str, float]:
    """One caller, 500 messages a call."""
    return _rate(stage, 1, lambda tasks: tasks.app.send_many("events", [BODY] * _BATCH))


def delay_many(stage: Stage) -> dict[str, float]:
    """One caller of a task, 500 calls of it at once."""
    return _rate(stage, 1, lambda tasks: tasks.noop.delay_many([(BODY,)] * _BATCH))


def asend(stage: Stage) -> dict[str, float]:
    """500 coroutines of one event loop, again and again."""
    return _rate(stage, 1, lambda tasks: asyncio.run(_at_once(tasks)))


async def _at_once(tasks: Tasks) -> list[Receipt]:
    return await asyncio.gather(*(tasks.app.asend("events", BODY) for _ in range(_BATCH)))


def _rate(stage: Stage, threads: int, call: Callable[[Tasks], list[Receipt]]) -> dict[str, float]:
    tasks = build(url=stage.url)
    first = len(call(tasks))  # connects, and creates the topic
    per_s, count = rate(stage.size.seconds, threads, lambda number: lambda: len(call(tasks)))
    tasks.app.close()
    _check(stage, count + first)
    return {"messages/s": per_s}


def send_latency(stage: Stage) -> dict[str, float]:
    """How long one ``send()`` takes, one after another with the pauses of a modest load."""
    app = build(url=stage.url).app
    app.send("events", BODY)
    took: list[float] = []
    for _ in range(stage.size.stamps):
        began = time.perf_counter()
        app.send("events", BODY)
        took.append((time.perf_counter() - began) * 1000)
        time.sleep(PAUSE_S)
    app.close()
    _check(stage, stage.size.stamps + 1)
    return {"p50 ms": percentile(took, 0.5), "p99 ms": percentile(took, 0.99)}
