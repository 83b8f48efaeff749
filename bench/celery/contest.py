"""One run on one broker: calls, consuming, latency, and what an idle worker costs; nothing may be lost."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.celery import bare
from bench.celery.sides import Brokers, CallPlace, Side, counting
from bench.load import percentile
from bench.peers.apps.tally import VARIABLE, Tally
from bench.stage import NotRight

_ROOT = Path(__file__).parents[2]
_START_S, _STALL_S, _STOP_S, _SEND_S = 60.0, 60.0, 60.0, 900.0
_QUIET_S = 10.0  # after which no poller looks less often than before


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Args:
        repeats: how often the brokers take turns.
        waiting: tasks that wait when a worker starts.
        steady: tasks of which one is called each 20 ms.
        quiet: tasks of which each is called after 3 quiet seconds.
        idle_s: for how long an idle worker is watched.
    """

    repeats: int
    waiting: int
    steady: int
    quiet: int
    idle_s: float


QUICK = Size(repeats=1, waiting=600, steady=100, quiet=3, idle_s=5)
DEFAULT = Size(repeats=3, waiting=3_000, steady=400, quiet=8, idle_s=15)


@dataclass
class Run:
    """The state of a run.

    Args:
        place: the broker.
        folder: for the tally and the log.
        size: how much.
    """

    place: CallPlace
    folder: Path
    size: Size
    used: int = 0
    figures: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = 4 * self.size.waiting + self.size.steady + self.size.quiet + 200
        self.tally = Tally.create(self.folder / "tally", count)

    def environ(self, options: Mapping[str, object], multiplier: int = 4, *, results: bool = False) -> dict[str, str]:
        """What the project is told."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        backend = {"BENCH_BACKEND": self.place.backend} if results and self.place.backend else {}
        return (
            kept
            | backend
            | {
                "PYTHONPATH": str(_ROOT),
                VARIABLE: str(self.folder / "tally"),
                "BENCH_BROKER": self.place.broker,
                "BENCH_OPTIONS": json.dumps(dict(options)),
                "BENCH_MULTIPLIER": str(multiplier),
            }
        )

    def send(self, env: Mapping[str, str], what: str, count: int, *more: float) -> tuple[range, float]:
        """Call tasks in a process of its own; returns their numbers, and calls a second."""
        argv = [sys.executable, "-m", "bench.celery.sender", what, str(self.used), str(count), *map(str, more)]
        done = subprocess.run(argv, env=dict(env), cwd=_ROOT, capture_output=True, text=True, timeout=_SEND_S)
        if done.returncode != 0:
            raise NotRight(f"sending ended with exit code {done.returncode}: {done.stderr[-2000:]}")
        numbers = range(self.used, self.used + count)
        self.used += count
        return numbers, float(json.loads(done.stdout.splitlines()[-1]))

    def raw_rate(self) -> float:
        """Calls a second that no transport on this database exceeds: each is one bare row, inserted and committed."""
        assert self.place.database is not None
        env = self.environ({}) | {"BENCH_BROKER": "bare://", bare.DATABASE: self.place.database}
        before = self.used
        _, rate = self.send(env, "fill", self.size.waiting)
        self.used = before  # nobody runs these
        return rate

    @contextmanager
    def working(self, env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
        """A worker with two processes, ended by SIGTERM."""
        log = self.folder / "worker.log"
        with log.open("ab") as output:
            command = [sys.executable, "-m", "celery", "-A", "bench.celery.app", "worker", "-c", "2", "-l", "WARNING"]
            worker = subprocess.Popen(
                command, env=dict(env), cwd=_ROOT, stdout=output, stderr=output, start_new_session=True
            )
        try:
            yield worker
            worker.send_signal(signal.SIGTERM)
            worker.wait(_STOP_S)
        except subprocess.TimeoutExpired as error:
            raise NotRight(f"the worker did not end within {_STOP_S:g} s of SIGTERM") from error
        finally:
            with suppress(ProcessLookupError):  # nothing has outlived it
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()

    def wait(self, numbers: range, worker: subprocess.Popen[bytes]) -> list[tuple[int, int, int]]:
        """Wait until tasks have run; returns their records.

        Raises:
            NotRight: some never ran.
        """
        missing, changed_at = len(numbers) + 1, time.monotonic()
        while missing:
            records = self.tally.records()[numbers.start : numbers.stop]
            left = sum(1 for runs, _, _ in records if runs == 0)
            if left != missing:
                missing, changed_at = left, time.monotonic()
            elif time.monotonic() - changed_at > _STALL_S or worker.poll() is not None:
                tail = (self.folder / "worker.log").read_text(errors="replace")[-2000:]
                raise NotRight(f"{missing} of {len(numbers)} tasks never ran: {tail}")
            time.sleep(0.05)
        return self.tally.records()[numbers.start : numbers.stop]

    def consume(self, name: str, numbers: range, env: Mapping[str, str]) -> None:
        """Drain what waits by a new worker, and note tasks a second, without the first tenth."""
        with self.working(env) as worker:
            entered = sorted(record[2] for record in self.wait(numbers, worker))
        skipped = len(entered) // 10
        self.figures[name] = (len(entered) - skipped) / ((entered[-1] - entered[skipped]) / 1e9)

    def latency(
        self, name: str, env: Mapping[str, str], worker: subprocess.Popen[bytes], count: int, gap: float
    ) -> None:
        """Call at a steady pace, and note the time from the call to the task."""
        numbers, _ = self.send(env, "pace", count, gap)
        took = [(entered - sent) / 1e6 for _, sent, entered in self.wait(numbers, worker)]
        self.figures |= {f"{name} p50 ms": percentile(took, 0.5), f"{name} p95 ms": percentile(took, 0.95)}

    def idle(self) -> None:
        """Note what the server does for a worker that has had nothing to do for a while."""
        time.sleep(_QUIET_S)
        with counting(self.place.database) as count:
            cpu_s, asked, began = self.place.cpu_s(), count(), time.monotonic()
            time.sleep(self.size.idle_s)
            took = time.monotonic() - began
            self.figures["idle, % of a core at the server"] = 100 * (self.place.cpu_s() - cpu_s) / took
            if self.place.database:
                self.figures["idle statements/s"] = (count() - asked - 1) / took  # the count itself is one

    def check(self) -> None:
        """Every task ran, and as nothing died, once.

        Raises:
            NotRight: otherwise.
        """
        runs = [record[0] for record in self.tally.records()[: self.used]]
        if runs.count(0) or sum(runs) != len(runs):
            raise NotRight(f"{len(runs)} tasks ran {sum(runs)} times, {runs.count(0)} of them never")


def run(brokers: Brokers, side: Side, size: Size, folder: Path) -> dict[str, float]:
    """Figures by name.

    Raises:
        NotRight: a task was lost or ran twice, or a process failed.
        ServerMissing: the broker is not installed.
    """
    folder = folder / f"{side.name}-{secrets.token_hex(4)}"
    folder.mkdir(parents=True)
    with brokers.fresh(side) as place:
        one = Run(place, folder, size)
        env = one.environ(place.confirmed)
        if not side.latency_only:
            _rates(one)
        with one.working(one.environ(place.confirmed)) as worker:
            numbers, _ = one.send(env, "fill", 100)
            one.wait(numbers, worker)
            one.latency("one each 20 ms,", env, worker, size.steady, 0.02)
            one.latency("after 3 s,", env, worker, size.quiet, 3.0)
            if not side.latency_only:
                one.idle()
        one.check()
    return one.figures


def _rates(one: Run) -> None:
    place, size = one.place, one.size
    confirmed = one.environ(place.confirmed)
    if place.database:
        one.figures["delay/s, raw limit"] = one.raw_rate()
    numbers, one.figures["delay/s"] = one.send(confirmed, "fill", size.waiting)
    one.consume("consume/s, prefetch 8", numbers, confirmed)
    unconfirmed = place.confirmed if place.unconfirmed is None else place.unconfirmed
    numbers, rate = one.send(one.environ(unconfirmed), "fill", size.waiting)
    if place.unconfirmed is not None:
        one.figures["delay/s, unconfirmed"] = rate
    one.consume("consume/s, prefetch 100", numbers, one.environ(place.confirmed, 50))
    if place.backend:
        env = one.environ(place.confirmed, results=True)
        numbers, _ = one.send(env, "fill", size.waiting)
        one.consume("consume/s, prefetch 8, with results", numbers, env)
