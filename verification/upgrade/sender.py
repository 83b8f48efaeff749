"""A program that sends one message after another until SIGTERM, and then prints how many, and how long the slowest took.

``python -m verification.upgrade.sender FIRST``: the numbers of its messages begin there.
"""

from __future__ import annotations

import json
import signal
import sys
from types import FrameType

from tests.support.machine import machine_s
from verification.upgrade.app import pay


def main() -> None:
    """Send until it is told to stop."""
    ended: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        ended.append(number)

    signal.signal(signal.SIGTERM, end)
    first = n = int(sys.argv[1])
    slowest = [0.0]
    while not ended:
        began = machine_s()
        pay.delay(n)
        slowest = sorted([*slowest, machine_s() - began])[-5:]
        n += 1
        if n % 50 == 0:
            print(n, file=sys.stderr, flush=True)
    print(json.dumps({"first": first, "end": n, "slowest_s": slowest}), flush=True)


if __name__ == "__main__":
    main()
