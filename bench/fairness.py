"""A small customer beside a large one: how long its messages wait with, and without, a flood in their group."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench import latency, worker
from bench.app import build
from bench.load import percentile
from bench.stage import NotRight, Stage

_FLOOD, _CALL = 100_000, 10_000
_PER_S = 20.0
_NAP_S = 0.01  # of every message: a call of another service, rather than the processor of this machine


def beside(flood: int) -> Callable[[Stage], dict[str, float]]:
    """One message of the small customer at a time, at an even pace.

    Args:
        flood: messages of the large customer that are sent before.

    Raises:
        NotRight: the flood had ended before the last message of the small customer was sent.
    """

    def measure(stage: Stage) -> dict[str, float]:
        count = stage.size.stamps
        tasks = build(url=stage.url)
        with worker.running(stage, worker.Shape("tenants")):
            for first in range(0, flood, _CALL):
                tasks.serve.delay_many([("large", _NAP_S) for _ in range(min(_CALL, flood - first))])
            began = time.perf_counter()
            for number in range(count):
                time.sleep(max(0.0, began + number / _PER_S - time.perf_counter()))
                tasks.serve.delay("small", _NAP_S, number, time.time_ns())
            took = latency.stamps(stage, count)
            if flood and not stage.value("SELECT COUNT(*) FROM ems_retry"):
                raise NotRight("fairness: the flood had ended before")
        tasks.app.close()
        return {"p50 ms": percentile(took, 0.5), "p99 ms": percentile(took, 0.99)}

    return measure


FLOODED, ALONE = beside(_FLOOD), beside(0)
