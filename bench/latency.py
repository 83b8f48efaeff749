"""The way of one message: from just before ``delay()`` to the handler's first line."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

from bench import worker
from bench.app import Tasks, build
from bench.consume import wait_until_drained
from bench.load import percentile
from bench.stage import NotRight, Stage

_STAMP_S = 10.0


def at(per_s: float, threads: int = 1, count: int | None = None) -> Callable[[Stage], dict[str, float]]:
    """Messages at an even pace, each confirmed.

    Args:
        per_s: how many a second; 0 for as many as there can be.
        threads: of one process that send them in turns.
        count: how many in all, or what the stage says.
    """

    def measure(stage: Stage) -> dict[str, float]:
        total = count or stage.size.stamps
        tasks = build(url=stage.url, redis_url=stage.redis_url)
        with worker.running(stage, worker.Shape("latency")):
            began = time.perf_counter()
            _send(tasks, total, per_s, threads)
            sent_s = time.perf_counter() - began
            wait_until_drained(stage, total)
            drained_s = time.perf_counter() - began
        tasks.app.close()
        took = stamps(stage, total)
        return {
            "p50 ms": percentile(took, 0.5),
            "p99 ms": percentile(took, 0.99),
            "sent/s": total / sent_s,
            "run/s": total / drained_s,
        }

    return measure


def _send(tasks: Tasks, total: int, per_s: float, threads: int) -> None:
    """Who comes late does not hurry to catch up with more than its own next message."""
    numbers, errors, began = itertools.count(), list[BaseException](), time.perf_counter()

    def body() -> None:
        try:
            while (number := next(numbers)) < total:
                if per_s:
                    time.sleep(max(0.0, began + number / per_s - time.perf_counter()))
                tasks.stamp.delay(number, time.time_ns())
        except BaseException as error:
            errors.append(error)

    senders = [threading.Thread(target=body) for _ in range(threads)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    if errors:
        raise errors[0]


def stamps(stage: Stage, count: int) -> list[float]:
    """How long each of so many messages took, in ms; waits until all have run.

    Raises:
        NotRight: one did not run, or one twice.
    """
    until, file = time.monotonic() + _STAMP_S, stage.folder / worker.STAMPS
    while True:
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        if len(lines) >= count or time.monotonic() > until:
            break
        time.sleep(0.05)
    if sorted(int(number) for number, _ in lines) != list(range(count)):
        raise NotRight(f"latency: {len(lines)} runs of {count} messages")
    return [int(ns) / 1e6 for _, ns in lines]
