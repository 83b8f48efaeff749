"""Publishing through ``Ems.send`` and ``Ems.send_many``, every message confirmed."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.app import build
from bench.load import BODY, PAUSE_S, percentile, rate
from bench.stage import Stage

_BATCH = 500


def _check(stage: Stage, count: int) -> None:
    """Everything that was confirmed is there, once, and the offsets have no holes."""
    stage.check("messages", count, "SELECT COUNT(*) FROM ems_message WHERE `offset` > 0")
    stage.check("highest offset", count, "SELECT MAX(`offset`) FROM ems_message WHERE `offset` > 0")
    stage.check("different uids", count, "SELECT COUNT(DISTINCT uid) FROM ems_message WHERE `offset` > 0")


def send(threads: int) -> Callable[[Stage], dict[str, float]]:
    """So many threads of one process call ``send``."""

    def measure(stage: Stage) -> dict[str, float]:
        app = build(url=stage.url).app
        app.send("events", BODY)  # connects, and creates the topic

        def step() -> int:
            app.send("events", BODY)
            return 1

        per_s, count = rate(stage.size.seconds, threads, lambda number: step)
        app.close()
        _check(stage, count + 1)
        return {"messages/s": per_s}

    return measure


def send_many(stage: Stage) -> dict[str, float]:
    """One caller, 500 messages a call."""
    app = build(url=stage.url).app
    app.send("events", BODY)

    def step() -> int:
        return len(app.send_many("events", [BODY] * _BATCH))

    per_s, count = rate(stage.size.seconds, 1, lambda number: step)
    app.close()
    _check(stage, count + 1)
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
