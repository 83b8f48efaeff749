"""``python -m bench.celery.sender fill FIRST COUNT`` or ``pace FIRST COUNT SECONDS``: calls from one process.

``fill`` calls as fast as it can, ``pace`` once every so many seconds. Prints calls per second as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time

from bench.celery.app import app, noop
from bench.peers.apps.tally import VARIABLE, Tally

_WARM_UP = 20


def _fill(first: int, count: int) -> float:
    for number in range(first, first + _WARM_UP):
        noop.delay(number)
    began = time.perf_counter()
    for number in range(first + _WARM_UP, first + count):
        noop.delay(number)
    return (count - _WARM_UP) / (time.perf_counter() - began)


def _pace(first: int, count: int, gap_s: float) -> float:
    tally, began = Tally(os.environ[VARIABLE]), time.perf_counter()
    for place in range(count):
        ahead = began + place * gap_s - time.perf_counter()
        time.sleep(max(0.0, ahead))
        tally.sent(first + place)
        noop.delay(first + place)
    return count / (time.perf_counter() - began)


def main() -> None:
    """Send, and close what sent."""
    what, first, count, *gap = sys.argv[1:]
    found = _fill(int(first), int(count)) if what == "fill" else _pace(int(first), int(count), float(gap[0]))
    app.close()
    app.pool.force_close_all()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
