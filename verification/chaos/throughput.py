"""Somebody else's transaction is held open, and four analysts read in REPEATABLE READ: work goes on as quickly."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from emsworker import Ems
from emsworker.local import LocalDatabase as Server
from tests.process.stream import open_stream
from tests.support.servers import connect
from tests.support.waiting import until
from verification.chaos.running import Row

NAME = "snapshot, 4 readers"
READERS = 4
_LOAD, _BATCH, _TRICKLE = 90_000, 3_000, 20
_QUERY = "SELECT topic_id, `partition`, COUNT(*), SUM(size), MAX(born_at) FROM ems_message WHERE `offset` > 0 GROUP BY topic_id, `partition`"
_REST = 9  # a reader rests for so many times as long as its query took: the machine is not what is measured
UNDER, AFTER = 0.8, 0.95


def iter_throughput(server: Server, folder: Path, phase_s: float) -> Iterator[Row]:
    """Measure the same work before, under and after them.

    Args:
        phase_s: how long each of the three phases is.
    """
    began = time.monotonic()
    folder.mkdir(parents=True)
    server.start(120)
    with open_stream(server, folder) as stream:
        with contextlib.closing(Ems("loader", url=stream.url)) as loader:
            worker = stream.worker(
                app="verification.chaos.steady:app", threads=4, settings={"lease_s": 10, "renew_s": 2}
            )
            feeder = Feeder(
                sender(loader), lambda: int(stream.one("SELECT COALESCE(SUM(next_offset), 0) FROM ems_cursor"))
            )

            with feeder:
                until(lambda: feeder.passed() > 5_000, 60, "it runs")
                clean = feeder.rate(phase_s)
                with analysts(stream.url):
                    under = feeder.rate(phase_s)
                after = feeder.rate(phase_s)
        stream.wait_settled(60)
        assert worker.stop() == 0
        (sent,), (run,) = stream.rows(
            "SELECT COUNT(*) FROM ems_message WHERE `offset` > 0 UNION ALL SELECT SUM(hi - lo + 1) FROM ems_claim"
        )
    note = f"{clean:,.0f}/s; {under / clean:.0%} under, {after / clean:.0%} after"
    slow = under < UNDER * clean or after < AFTER * clean
    took_s = round(time.monotonic() - began, 1)
    sent, run = int(sent), int(run)
    lost = sent - run
    text = f"slower than {UNDER:.0%} under and {AFTER:.0%} after: {note}" if slow else ""
    yield Row(NAME, server.flavor, "mysql", sent, run, lost, 0, 0, 0, 0, None, None, took_s, text, note)


def sender(app: Ems) -> Callable[[int], int]:
    """Sends so many messages to the topic of the steady workers."""
    return lambda count: len(app.send_many("steady", [{"n": n} for n in range(count)]))


class Feeder:
    """Keeps a backlog, so that the worker is never idle, and measures how quickly it goes down.

    Args:
        send: sends about so many messages and returns how many it has sent.
        passed: how many offsets were claimed so far.
        load: how large the backlog is.
    """

    def __init__(self, send: Callable[[int], int], passed: Callable[[], int], load: int = _LOAD) -> None:
        self._send, self.passed, self._load = send, passed, load
        self._stopping, self._trickling = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._feed)
        self._sent = 0

    def _feed(self) -> None:
        while not self._stopping.is_set():
            trickling = self._trickling.is_set()
            self._sent += self._send(_TRICKLE if trickling else _BATCH)
            if trickling:
                self._stopping.wait(0.1)
            while self.backlog > self._load and not self._trickling.is_set() and not self._stopping.wait(0.05):
                pass

    @property
    def backlog(self) -> int:
        """How many messages were sent and not claimed yet."""
        return self._sent - self.passed()

    def trickle(self) -> None:
        """Send a few messages ten times a second, whether there is a backlog or not."""
        self._trickling.set()

    def fill(self) -> None:
        """Keep a backlog again."""
        self._trickling.clear()

    def rate(self, for_s: float) -> float:
        """Offsets that are claimed in a second."""
        began, before = time.monotonic(), self.passed()
        time.sleep(for_s)
        return (self.passed() - before) / (time.monotonic() - began)

    def __enter__(self) -> "Feeder":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Send no more."""
        self._stopping.set()
        self._thread.join()


@contextmanager
def analysts(url: str) -> Iterator[None]:
    """An open transaction with a change in it, and readers whose snapshots stay open."""
    stopping = threading.Event()
    threads = [threading.Thread(target=_read, args=(url, stopping)) for _ in range(READERS)]
    with connect(url, autocommit=False) as foreign, foreign.cursor() as cursor:
        begin_snapshot(cursor)
        cursor.execute("INSERT INTO account VALUES (77, 1)")
        cursor.execute("SELECT COUNT(*) FROM ems_claim")
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stopping.set()
            for thread in threads:
                thread.join()
            foreign.rollback()


def _read(url: str, stopping: threading.Event) -> None:
    with connect(url, autocommit=False) as connection, connection.cursor() as cursor:
        begin_snapshot(cursor)
        while not stopping.is_set():
            began = time.monotonic()
            cursor.execute(_QUERY)
            cursor.fetchall()
            stopping.wait(max(0.2, _REST * (time.monotonic() - began)))


def begin_snapshot(cursor: Any) -> None:
    """Open a transaction in REPEATABLE READ that sees the present from now on."""
    cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
