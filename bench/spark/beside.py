"""What a reader costs the workers: a backlog is drained, in turns with and without Spark reading the same topic.

Two cores cannot be in three places: what Spark computes, workers and server do not. So its processes have a low
priority, and the handlers wait (2 ms) instead of computing: then the rate is that of claims, bodies and acked offsets,
and it falls if reading holds locks, keeps snapshots open or keeps the server busy. That is what is asked to cost less
than 10%. What Spark's own work takes from workers on cores that they share is not measured here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench import worker
from bench.spark import raw
from bench.spark.figure import Figure
from bench.stage import NotRight, Servers, Stage
from emsworker import Ems
from emsworker.admin import Admin

_ROWS, _SIZE = 400_000, 200
_SETTLE_S, _WINDOW_S = 1.5, 5.0
_NICE = "10"  # lower still, Python workers that a busy machine starts do not come up within Spark's patience
_TICK_S = 0.2
_TICKS = os.sysconf("SC_CLK_TCK")
_LOCKS = ("Innodb_row_lock_waits", "Innodb_row_lock_time")


@dataclass(frozen=True)
class Window:
    """What was seen in a few seconds, for each second.

    Attributes:
        messages: done by the workers.
        lock_waits, lock_ms: of the whole server, for row locks, and how long they took.
        rows_read: by the server, for whomever.
        server_cpu: seconds of its processor time.
        oldest_ms: the age of the oldest transaction that was seen.
    """

    messages: float
    lock_waits: float
    lock_ms: float
    rows_read: float
    server_cpu: float
    oldest_ms: float


class _Watcher:
    """Looks at the server from outside."""

    def __init__(self, stage: Stage, servers: Servers) -> None:
        self._stage, self._servers = stage, servers

    def window(self, seconds: float) -> Window:
        with self._stage.connect() as work, raw.connect(self._servers.database.admin_url) as admin:
            before, began, oldest = self._counters(work), time.monotonic(), 0.0
            while time.monotonic() < began + seconds:
                oldest = max(oldest, _oldest(admin))
                time.sleep(_TICK_S)
            after, took = self._counters(work), time.monotonic() - began
        rates = [(b - a) / took for a, b in zip(before, after, strict=True)]
        messages, waits, lock_ms, rows_read, cpu = rates
        return Window(messages, waits, lock_ms, rows_read, cpu, oldest * 1000)

    def _counters(self, connection: Any) -> list[float]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT COALESCE(SUM(acked_to + 1 - lo), 0) FROM ems_claim")
            done = float(cursor.fetchone()[0])
            cursor.execute("SHOW GLOBAL STATUS WHERE Variable_name IN %s", (_LOCKS,))
            status = dict(cursor.fetchall())
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Handler_read%'")  # MariaDB has no count of InnoDB's rows
            rows_read = sum(int(value) for _, value in cursor.fetchall())
        pid = self._servers.database.pid
        assert pid is not None
        return [done, *(float(status[name]) for name in _LOCKS), float(rows_read), cpu_s(pid)]


def _oldest(admin: Any) -> float:
    """Seconds since the oldest open transaction of anybody but us began."""
    with admin.cursor() as cursor:
        cursor.execute(
            "SELECT COALESCE(MAX(TIMESTAMPDIFF(MICROSECOND, trx_started, NOW(6))), 0) / 1000000 "
            "FROM information_schema.innodb_trx WHERE trx_mysql_thread_id <> CONNECTION_ID()"
        )
        return float(cursor.fetchone()[0])


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class _Reader:
    """The process that reads, with a low priority."""

    def __init__(self, folder: Path) -> None:
        self._log = (folder / "reader.log").open("wb")
        command = ["nice", "-n", _NICE, sys.executable, "-m", "bench.spark.reader", str(folder), str(_ROWS)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process: subprocess.Popen[str] = subprocess.Popen(command, stderr=self._log, **pipes)
        self._name = folder / "reader.log"

    def answer(self) -> str:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return line.strip()
        raise NotRight(f"the reader has ended: {self._name.read_text(errors='replace')[-2000:]}")

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._log.close()


@contextmanager
def _reading(folder: Path) -> Iterator[_Reader]:
    reader = _Reader(folder)
    try:
        if reader.answer() != "ready":
            raise NotRight("the reader did not become ready")
        yield reader
    finally:
        reader.close()


def measure(stage: Stage, servers: Servers, rounds: int, say: Callable[[str], None]) -> list[Figure]:
    """The backlog of one topic, drained in windows that are in turns without and with a reader."""
    app = Ems("bench", url=stage.url)
    admin = Admin(app)
    topic = admin.create_topic("bench")
    admin.create_group("bench", "waits")
    app.close()
    raw.fill(stage.url, topic.id, _ROWS, _SIZE)
    watcher = _Watcher(stage, servers)
    alone, beside, reads = [], [], []
    shape = worker.Shape("bench", app="bench.spark.waits")
    with _reading(stage.folder) as reader, worker.running(stage, shape):
        for number in range(rounds):
            time.sleep(_SETTLE_S)
            alone.append(watcher.window(_WINDOW_S))
            reader.tell("on")
            time.sleep(_SETTLE_S)
            began = time.monotonic()
            beside.append(watcher.window(_WINDOW_S))
            reader.tell("off")
            in_stream, at_rest = map(int, reader.answer().split())
            reads.append((in_stream + at_rest) / (time.monotonic() - began + _SETTLE_S))
            say(f"  round {number + 1}: {alone[-1]}\n    beside a reader of {reads[-1]:,.0f} rows/s: {beside[-1]}")
    if stage.value("SELECT COALESCE(SUM(acked_to + 1 - lo), 0) FROM ems_claim") >= _ROWS:
        raise NotRight(f"the backlog of {_ROWS} messages is used up; the last windows had nothing to do")
    if min(reads) <= 0:
        raise NotRight("the reader had no time to read anything; the machine is too busy")
    return _figures(alone, beside, reads)


def _figures(alone: list[Window], beside: list[Window], reads: list[float]) -> list[Figure]:
    def of(windows: list[Window], name: str) -> list[float]:
        return [getattr(window, name) for window in windows]

    rate = f"Spark reads {median(reads):,.0f} rows/s, at a low priority"
    figures = [
        Figure(
            "beside",
            "workers beside a stream and a read at rest",
            "messages/s",
            of(beside, "messages"),
            "without a reader",
            of(alone, "messages"),
            least=0.9,
            note=rate,
        )
    ]
    for name, what, unit in (
        ("lock_waits", "the server's waits for row locks", "waits/s"),
        ("server_cpu", "the server's processor time", "cores"),
        ("rows_read", "rows that the server reads", "rows/s"),
        ("oldest_ms", "the oldest transaction of all", "ms"),
    ):
        without = f"{median(of(alone, name)):,.1f} without a reader"
        figures.append(Figure("beside", f"{what}, beside a reader", unit, of(beside, name), without))
    return figures
