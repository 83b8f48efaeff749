"""``./dev bench-flows``: flows of EMS, workflows of DBOS and Celery's canvas, in turns; every commit is synced."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any

import redis

from bench.peers.arena import Arena
from bench.peers.systems import Broker
from bench.peers.venvs import python_of
from bench.stage import Servers
from emsworker.local import ServerMissing

_ROOT = Path(__file__).parents[2]
_STOP_S = 30.0


@dataclass(frozen=True)
class Line:
    """What is measured.

    Args:
        name: of the work in each program.
        flows, size: flows that are started at once, and the steps or calls of each.
        quick: the same, for a look.
    """

    title: str
    name: str
    flows: int
    size: int
    quick: tuple[int, int]


LINES = (
    Line("one flow of steps", "steps", 1, 1000, (1, 100)),
    Line("100 flows of 10 steps", "steps", 100, 10, (20, 10)),
    Line("100 flows of 10 steps, coroutines", "coroutines", 100, 10, (20, 10)),
    Line("one flow of calls", "calls", 1, 100, (1, 10)),
    Line("join of 10", "join", 1, 10, (1, 10)),
    Line("join of 1,000", "join", 1, 1000, (1, 100)),
)


@dataclass(frozen=True)
class Side:
    """A system.

    Args:
        broker: the server that it needs.
        worker: the program beside, if it has one.
    """

    name: str
    broker: Broker
    requirements: tuple[str, ...]
    program: str
    worker: tuple[str, ...] = ()


_EMS = "bench.flows.apps.ems_side"
SIDES = (
    Side(
        "EMS",
        "database",
        (),
        "bench.flows.apps.ems_side",
        ("emsworker", "worker", "-A", "bench.flows.apps.ems_side:app"),
    ),
    Side("DBOS", "postgresql", ("dbos==3.4.0",), "bench.flows.apps.dbos_side"),
    Side(
        "Celery",
        "redis",
        (),
        "bench.flows.apps.celery_side",
        ("celery", "-A", "bench.flows.apps.celery_side:app", "worker", "-c", "2", "--loglevel", "ERROR"),
    ),
)


@contextmanager
def asked(side: Side, arena: Arena) -> Iterator[subprocess.Popen[str]]:
    """A program that answers, and its worker; both end with the block."""
    python = python_of(side.name.lower(), side.requirements)
    with arena.fresh(side.broker) as found, ExitStack() as stack:
        env = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        env |= {"PYTHONPATH": str(_ROOT), **found}
        if side.worker:
            stack.enter_context(_running([str(python), "-m", *side.worker], env, subprocess.DEVNULL))
        program = stack.enter_context(
            _running([str(python), "-c", f"from {side.program} import main; main()"], env, subprocess.PIPE)
        )
        assert json.loads(_line(program.stdout)) == "ready"
        yield program


def _line(stream: IO[str] | None) -> str:
    assert stream is not None
    text = stream.readline()
    if not text:
        raise SystemExit("Error: a program of the benchmark has ended; its errors are above")
    return text


@contextmanager
def _running(argv: list[str], env: dict[str, str], pipe: int) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(argv, env=env, cwd=_ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            if process.stdin is not None:
                process.stdin.close()
            else:
                process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def ask(program: subprocess.Popen[str], line: Line, *, quick: bool) -> float:
    """Measure a line once; return steps, or calls, a second."""
    flows, size = line.quick if quick else (line.flows, line.size)
    assert program.stdin is not None
    program.stdin.write(json.dumps([line.name, flows, size]) + "\n")
    program.stdin.flush()
    took_s: float = json.loads(_line(program.stdout))
    return flows * size / took_s


def table(found: dict[str, dict[str, list[float]]]) -> str:
    """Medians, and EMS divided by each other side, the median of the rounds' ratios."""
    head = ["a second", *(side.name for side in SIDES), *(f"EMS / {side.name}" for side in SIDES[1:])]
    lines = [f"| {' | '.join(head)} |", f"| --- |{' ---: |' * (len(head) - 1)}"]
    for title, by_side in found.items():
        cells = [f"{median(by_side[side.name]):,.0f}" if side.name in by_side else "" for side in SIDES]
        for side in SIDES[1:]:
            pairs = zip(by_side["EMS"], by_side.get(side.name, ()), strict=False)
            ratios = [ours / theirs for ours, theirs in pairs]
            cells.append(f"{median(ratios):.1f}" if ratios else "")
        lines.append(f"| {' | '.join([title, *cells])} |")
    return "\n".join(lines)


def measure(rounds: int, *, quick: bool) -> dict[str, dict[str, list[float]]]:
    """Let the sides take turns, a line after another."""
    found: dict[str, dict[str, list[float]]] = {line.title: {} for line in LINES}
    with tempfile.TemporaryDirectory(prefix="ems-bench-") as name, ExitStack() as stack:
        servers = stack.enter_context(Servers(Path(name), "mariadb"))
        if servers.redis is not None:
            with redis.Redis.from_url(servers.redis.url) as client:
                client.config_set("appendonly", "yes")
                client.config_set("appendfsync", "always")
        arena = stack.enter_context(Arena(servers, Path(name)))
        programs = {}
        for side in SIDES:
            try:
                programs[side.name] = stack.enter_context(asked(side, arena))
            except ServerMissing as error:
                print(f"{side.name} is left out: {error}", file=sys.stderr)
        for turn in range(rounds + 1):  # the first one warms up
            for line in LINES:
                for side in SIDES:
                    if side.name not in programs or (side.name == "Celery" and line.name not in ("calls", "join")):
                        continue
                    rate = ask(programs[side.name], line, quick=quick or not turn)
                    if turn:
                        found[line.title].setdefault(side.name, []).append(rate)
    return found


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="./dev bench-flows", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few steps, once: to see that it works")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how often they take turns (default: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every round to a file")
    chosen = parser.parse_args()
    found: Any = measure(1 if chosen.quick else chosen.rounds, quick=chosen.quick)
    print(table(found))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
