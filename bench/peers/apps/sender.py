"""``python -m bench.peers.apps.sender APP ...``: sends from a process of its own, in the system's own environment.

``prepare`` makes ready; ``fill COUNT ONES`` sends that many messages: the first ONES one by one, the rest 500 a call
where the system can, else all one by one; ``pace FROM TO PER_S`` sends at a steady rate. Prints figures as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from typing import Any

from bench.peers.apps.tally import VARIABLE, Tally

_CALL = 500


def _fill(app: Any, count: int, ones: int) -> dict[str, float]:
    send_many, fill = getattr(app, "send_many", None), getattr(app, "fill", None)
    ones = count if send_many is None and fill is None else min(ones, count)
    app.send(0)  # connects
    began = time.perf_counter()
    for number in range(1, ones):
        app.send(number)
    figures = {"enqueue/s": (ones - 1) / (time.perf_counter() - began)}
    rest = range(ones, count)
    if fill is not None:
        fill(rest)
    if (in_batches := send_many or getattr(app, "send_apart", None)) and rest:
        began = time.perf_counter()
        for start in range(0, len(rest), _CALL):
            in_batches(rest[start : start + _CALL])
        figures["enqueue in batches/s"] = len(rest) / (time.perf_counter() - began)
    return figures


def _pace(app: Any, first: int, last: int, per_s: float) -> dict[str, float]:
    tally = Tally(os.environ[VARIABLE])
    began, late = time.perf_counter(), 0.0
    for place, number in enumerate(range(first, last)):
        ahead = began + place / per_s - time.perf_counter()
        if ahead > 0:
            time.sleep(ahead)
        late = max(late, -ahead)
        tally.sent(number)
        app.send(number)
    return {"sender late by ms": late * 1000}


def main() -> None:
    """Do one of the three."""
    name, what, *numbers = sys.argv[1:]
    app = import_module(f"bench.peers.apps.{name}")
    if what == "prepare":
        getattr(app, "prepare", lambda: None)()
        figures: dict[str, float] = {}
    elif what == "fill":
        figures = _fill(app, *map(int, numbers))
    else:
        figures = _pace(app, *map(int, numbers))
    getattr(app, "close", lambda: None)()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
