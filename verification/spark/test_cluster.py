"""Exactly once on a standalone cluster: speculation, failing tasks, and executors and drivers that are killed."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from emsworker.publish.outgoing import Outgoing
from tests.spark.conftest import ROOT, spark_environment
from tests.spark.test_kills import kill_all
from tests.support.streams import Stream, wait_until
from verification.spark.apps.exactly import FAILURES, attempts
from verification.spark.cluster import Cluster

KILLS = 6 if os.environ.get("EMS_TEST_LONG") else 0
_PATIENCE_S = 300.0
_SLOW_PYTHON = "Python worker failed to connect back"
_ROWS = (
    "SELECT CAST(body AS CHAR) FROM ems_message m JOIN ems_topic t ON t.id = topic_id AND `offset` > 0 WHERE t.name = %s "
    "AND m.kind = 'message' ORDER BY `partition`, `offset`"
)


def numbers(stream: Stream, topic: str) -> list[int]:
    """What has arrived in a topic, in its order."""
    return [int(body) for (body,) in stream.rows(_ROWS, topic)]


class Driver:
    """A driver of the cluster with its Java. It is started again if Spark gave up a Python that took 10 s to start.

    That limit of Spark cannot be set, and a busy machine exceeds it; any other end of a driver is an error.
    """

    def __init__(self, cluster: Cluster, folder: Path, until: str) -> None:
        self._cluster, self._folder, self._until = cluster, folder, until
        self._start()

    def _start(self) -> None:
        self._own = Path(tempfile.mkdtemp(prefix=f"driver-{self._until}-", dir=self._folder))
        words = [self._cluster.url, str(self._folder), str(self._own), self._until]
        command = [sys.executable, "-m", "verification.spark.apps.exactly", *words]
        environ = {**os.environ, **spark_environment()}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environ, stdout=log, stderr=log, start_new_session=True
            )

    def attempts(self, kind: str) -> list[int]:
        """The attempts of the task that this driver's last start has chosen for some trouble."""
        return attempts(self._own, kind)

    @property
    def _log(self) -> Path:
        return self._own / "log"

    def check(self) -> bool:
        """Return whether the driver has ended well; start it again, or raise, if it has failed."""
        if self._process.poll() in (None, 0):
            return self._process.poll() == 0
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if not line.startswith("\tat ")]
        assert any(_SLOW_PYTHON in line for line in lines), "\n".join(lines)[-6000:]
        self.kill()
        self._start()
        return False

    def kill(self) -> None:
        """Kill it with its Java and its Pythons."""
        kill_all(self._process)


@contextmanager
def driver(cluster: Cluster, folder: Path, until: str) -> Iterator[Driver]:
    """A driver that is killed at the end."""
    one = Driver(cluster, folder, until)
    try:
        yield one
    finally:
        one.kill()


@pytest.mark.timeout(1200)
def test_each_row_arrives_once_whatever_fails_or_is_killed(
    stream: Stream, profile: None, cluster: Cluster, tmp_path: Path
) -> None:
    for name in ("in", "out", "each"):
        stream.topic(name, partitions=2)
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        stream.app().send_many("in", [Outgoing("in", n, key=f"k{n % 7}") for n in range(sent, sent + count)])
        sent += count

    send(4000)
    with driver(cluster, tmp_path, "forever") as one:

        def reached(rows: int) -> bool:
            assert not one.check(), "it runs for ever"
            return len(numbers(stream, "out")) >= rows

        def saved() -> bool:
            return not one.check() and (tmp_path / "saved").exists()

        # The first ones raise, so one more is seen only if Spark has tried the task again after all of them.
        wait_until(lambda: reached(40) and len(one.attempts("fails")) > FAILURES, _PATIENCE_S, "a task that failed")
        failed = one.attempts("fails")
        assert len(failed) == len(set(failed)), "each of them was an attempt of its own"
        # The first one waits for another, so the other ran beside it.
        wait_until(lambda: reached(40) and len(set(one.attempts("slow"))) > 1, _PATIENCE_S, "a speculative task")
        wait_until(
            lambda: reached(40) and len(numbers(stream, "each")) >= 40,
            _PATIENCE_S,
            "a batch that speculation has saved",
        )
        before = len(numbers(stream, "out"))
        victim, *others = wait_until(cluster.executors, _PATIENCE_S, "executors")
        os.kill(victim, signal.SIGKILL)
        assert others
        wait_until(lambda: reached(before + 80), _PATIENCE_S, "progress with an executor less")
        wait_until(saved, _PATIENCE_S, "a batch that is saved and not committed")
    batch = (tmp_path / "saved").read_text()
    assert not (tmp_path / "by-batch" / "commits" / batch).exists()
    rows = numbers(stream, "each")
    assert 0 < len(rows) < sent and len(numbers(stream, "out")) < sent, "the kill came too late to be in the middle"

    for _ in range(KILLS):
        (tmp_path / "saved").unlink()
        send(200)
        with driver(cluster, tmp_path, "forever") as one:
            wait_until(saved, _PATIENCE_S, "a batch that is saved and not committed")

    with driver(cluster, tmp_path, "end") as one:
        wait_until(one.check, _PATIENCE_S, "the end of both queries")
    for topic in ("out", "each"):
        found = numbers(stream, topic)
        assert sorted(found) == list(range(sent)), topic
        for key in range(7):
            of_key = [number for number in found if number % 7 == key]
            assert topic == "each" or of_key == sorted(of_key), f"the order of key k{key}"
