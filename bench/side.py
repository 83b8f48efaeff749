"""``python -m bench.side SECONDS WORK ...``: one of several processes that do the same at the same time, and count.

It says ``ready``, waits for a line, works for so many seconds, and prints how often it did, from when to when.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.app import build
from bench.load import BODY, rate
from bench.raw import inserting
from bench.stage import QUICK, NotRight, Stage

_ROOT = Path(__file__).parents[1]
_START_S = 60.0


def at_once(work: Sequence[str], processes: int, seconds: float) -> tuple[int, float]:
    """Run so many processes of a work at the same time; what they did in all, and how often a second.

    Args:
        work: its name and arguments.
        processes: how many.
        seconds: how long.

    Raises:
        NotRight: one of them ended otherwise, or before another had begun.
    """
    command = [sys.executable, "-m", "bench.side", str(seconds), *work]
    with ExitStack() as stack:
        started = []
        for _ in range(processes):
            process = subprocess.Popen(
                command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            started.append(process)
        for process in started:
            if process.stdout is None or process.stdout.readline() != "ready\n":
                raise NotRight(f"a process for {work[0]} did not become ready")
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        told = [process.communicate(timeout=_START_S + seconds)[0].split() for process in started]
    if any(len(one) != 3 for one in told):
        raise NotRight(f"a process for {work[0]} did not end well")
    count, began, ended = (
        sum(int(one[0]) for one in told),
        [float(one[1]) for one in told],
        [float(one[2]) for one in told],
    )
    if max(began) >= min(ended):
        raise NotRight(f"a process for {work[0]} ended before another had begun")
    return count, count / (max(ended) - min(began))


def _sender(url: str, redis_url: str, allocator: str) -> Callable[[], int]:
    app = build(url=url, redis_url=redis_url or None, allocator=allocator).app
    app.send("warm", BODY)  # connects
    app.stream.catalog.topic("events")

    def step() -> int:
        app.send("events", BODY)
        return 1

    return step


def _raw(url: str) -> Callable[[], int]:
    return inserting(Stage(url, None, _ROOT, QUICK).connect())


def _naps(seconds: float, threads: str, nap_s: str) -> int:
    def step() -> int:
        time.sleep(float(nap_s))
        return 1

    return rate(seconds, int(threads), lambda number: step)[1]


def _until(seconds: float, step: Callable[[], int]) -> int:
    count, until = 0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        count += step()
    return count


def _prepare(name: str, arguments: Sequence[str]) -> Callable[[float], int]:
    if name == "naps":
        threads, nap_s = arguments
        return lambda seconds: _naps(seconds, threads, nap_s)
    step = _raw(*arguments) if name == "raw" else _sender(*arguments)
    return lambda seconds: _until(seconds, step)


def main() -> None:
    """Do it."""
    work = _prepare(sys.argv[2], sys.argv[3:])
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.time()
    count = work(float(sys.argv[1]))
    print(count, began, time.time())


if __name__ == "__main__":
    main()
