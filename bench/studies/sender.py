"""A process that calls a task from many threads for a while: ``python -m bench.studies.sender URL SECONDS THREADS``.

It begins when it reads a line, and prints how many calls a second were confirmed, and how many in all.
"""

from __future__ import annotations

import sys

from bench.app import build
from bench.load import rate


def main(url: str, seconds: float, threads: int) -> None:
    """Send, and print the rate and the number."""
    tasks = build(url=url)
    tasks.noop.delay(0)  # connects
    print("ready", flush=True)
    sys.stdin.readline()

    def step() -> int:
        tasks.noop.delay(1)
        return 1

    per_s, count = rate(seconds, threads, lambda number: step)
    tasks.app.close()
    print(per_s, count + 1, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
