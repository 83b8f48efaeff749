"""kill -9 of drivers and executors, in the middle of copying the stream to Parquet and to another topic."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from emsworker.publish.outgoing import Outgoing
from tests.spark.conftest import ROOT, spark_environment
from tests.support.servers import kill_connection
from tests.support.streams import Stream, wait_until

KILLS = 8 if os.environ.get("EMS_TEST_LONG") else 0
_PATIENCE_S = 400.0  # three Javas and their Pythons start on what may be a busy machine
_COMMITTED = "SELECT sink, batch, moved FROM ems_ledger WHERE state = 'moving'"
_MOVERS = "SELECT id FROM information_schema.processlist WHERE info LIKE 'UPDATE ems_partition%'"


@contextmanager
def driver(master: str, folder: Path, until: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A driver in a process group of its own, with its Java and its executors; killed as one at the end."""
    command = [sys.executable, "-m", "tests.spark.apps.copying", master, str(folder), until]
    with (folder / "driver.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **spark_environment(), "SPARK_LOCAL_DIRS": str(folder / "local")},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        kill_all(process)


def kill_all(process: "subprocess.Popen[bytes]") -> None:
    """Kill -9 of a whole session: Spark's Python workers are in a process group of their own, and would go on."""
    left = [process.pid]
    while left:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        left = _session_of(process.pid)


def _session_of(leader: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended meanwhile
            if entry.name.isdecimal() and os.getsid(int(entry.name)) == leader and (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def executors(leader: int) -> list[int]:
    """The Java processes of the group that run tasks."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if (
                    os.getpgid(int(entry.name)) == leader
                    and b"CoarseGrainedExecutorBackend" in (entry / "cmdline").read_bytes()
                ):
                    found.append(int(entry.name))
            except OSError:
                continue  # it has ended meanwhile
    return found


def copied(stream: Stream) -> list[bytes]:
    return [
        body
        for (body,) in stream.rows(
            "SELECT body FROM ems_message m JOIN ems_topic t ON t.id = topic_id AND `offset` > 0 WHERE name = 'out' ORDER BY `partition`, `offset`"
        )
    ]


@contextmanager
def killed_before_its_move(stream: Stream) -> Iterator[None]:
    """A sink that has committed to its ledger waits for the partitions; it is gone at the end, and so is its connection."""
    holder = stream.other()
    with holder.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM ems_partition p JOIN ems_topic t ON t.id = p.topic_id WHERE t.name = 'out' FOR UPDATE"
        )
        waiting = wait_until(lambda: stream.rows(_MOVERS), _PATIENCE_S, "a mover")
        (before,) = stream.rows(_COMMITTED)
        yield
        # The server sees that a client has died when it answers it, and would do until then what it had been told to.
        for (number,) in waiting:
            kill_connection(cursor, number)
        wait_until(lambda: not stream.rows(_MOVERS), what="the end of their connections")
    holder.rollback()
    holder.close()
    assert list(stream.rows(_COMMITTED)) == [before], "the batch is in the ledger, and none of its chunks is moved"


@pytest.mark.timeout(1800)
def test_nothing_is_lost_or_doubled_when_executors_and_drivers_are_killed(
    stream: Stream, spark: Any, tmp_path: Path
) -> None:
    app = stream.app()
    stream.topic("in", partitions=2)
    stream.topic("out", partitions=2)
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        app.send_many("in", [Outgoing("in", number, key=f"k{number % 7}") for number in range(sent, sent + count)])
        sent += count

    def progress(process: "subprocess.Popen[bytes]", rows: int) -> None:
        """Until so many more rows have come out, and some files."""
        before = len(copied(stream))

        def enough() -> object:
            assert process.poll() is None, (tmp_path / "driver.log").read_text()[-3000:]
            files = list((tmp_path / "out" / "_spark_metadata").glob("[0-9]*"))
            return len(copied(stream)) >= before + rows and files

        wait_until(enough, _PATIENCE_S, "progress")

    send(1500)
    with driver("local-cluster[2,1,1024]", tmp_path, "forever") as process:
        progress(process, 50)
        victim, *others = executors(process.pid)
        os.kill(victim, signal.SIGKILL)
        assert others
        progress(process, 50)
        with killed_before_its_move(stream):
            kill_all(process)
    for _ in range(KILLS):
        send(500)
        with driver("local[2]", tmp_path, "forever") as process:
            progress(process, 50)
    assert len(copied(stream)) < sent, "the kills came too late to be in the middle"
    with driver("local[2]", tmp_path, "end") as process:
        assert process.wait(_PATIENCE_S) == 0, (tmp_path / "driver.log").read_text()[-3000:]

    numbers = [int(body) for body in copied(stream)]
    assert sorted(numbers) == list(range(sent))
    rows = spark.read.parquet(str(tmp_path / "out")).selectExpr("int(string(value)) AS n").collect()
    assert sorted(row.n for row in rows) == list(range(sent))
    for key in range(7):
        of_key = [number for number in numbers if number % 7 == key]
        assert of_key == sorted(of_key), f"the order of key k{key}"
