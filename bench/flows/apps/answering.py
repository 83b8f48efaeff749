"""A line of JSON in, what is to be measured; a line of JSON out, what it took. It ends with its input."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping

_PAUSE_S = 0.02

Work = Callable[[int, int], int | list[float]]


def answer(lines: Mapping[str, Work]) -> None:
    """Answer until the input ends; each question is ``[line, flows, size]``.

    The answer is the seconds that it took or, of work that returns its latencies, these in milliseconds.
    """
    print(json.dumps("ready"), flush=True)
    for text in sys.stdin:
        name, flows, size = json.loads(text)
        began = time.perf_counter()
        found = lines[name](flows, size)
        took_s = time.perf_counter() - began
        if isinstance(found, list):
            print(json.dumps(found), flush=True)
            continue
        if found != flows * size:
            raise SystemExit(f"{name}: {flows} flows of {size} gave {found}")
        print(json.dumps(took_s), flush=True)


def latencies(flows: int, start: Callable[[], int]) -> list[float]:
    """Start flows one after another; return after how many milliseconds the first step of each ran.

    Args:
        start: starts one and waits for its end; it returns the time of its first step by the machine's monotonic clock,
            which all processes share, in nanoseconds.
    """
    found = []
    for _ in range(flows):
        began = time.monotonic_ns()
        found.append((start() - began) / 1e6)
        time.sleep(_PAUSE_S)
    return found
