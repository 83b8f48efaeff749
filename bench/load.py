"""Work done by many threads for a while, and counted."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

# A body of about 200 bytes of JSON, the size of a small event.
BODY = {"flight": "UA1545", "origin": "EWR", "dest": "IAH", "delay": 2, "note": "x" * 128}
PAUSE_S = 0.002  # between two messages of which each is timed


def rate(seconds: float, threads: int, make: Callable[[int], Callable[[], int]]) -> tuple[float, int]:
    """Call workers again and again until the time is over.

    Args:
        seconds: how long.
        threads: how many workers, each in a thread of its own.
        make: called with the worker's number in its own thread, before the clock starts; returns what is called again
            and again, and says how many messages it has handled.

    Returns:
        messages per second, and messages in all.
    """
    gate = threading.Barrier(threads + 1)
    counts = [0] * threads
    errors: list[BaseException] = []

    def body(number: int) -> None:
        try:
            step = make(number)
            gate.wait()
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                counts[number] += step()
        except BaseException as error:
            errors.append(error)
            gate.abort()

    workers = [threading.Thread(target=body, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    with contextlib.suppress(threading.BrokenBarrierError):  # the error of the thread that broke it is raised below
        gate.wait()
    began = time.perf_counter()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]
    return sum(counts) / (time.perf_counter() - began), sum(counts)


def percentile(values: list[float], share: float) -> float:
    """The value below which that share of the sorted values lies."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
