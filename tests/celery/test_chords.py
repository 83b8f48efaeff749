"""Chords whose workers are killed: the body of each is sent exactly once."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from celery import Celery, chord

from emsworker.store.engine.database import Database
from emsworker.store.engine.schema import migrate
from tests.support.servers import connect
from tests.support.waiting import until
from tests.support.worker import ROOT

WAIT_S = 240
CHORDS, PARTS = 4, 12

_APP = """
import os, time
from celery import Celery
app = Celery("chords", broker=os.environ["STREAM"] + "?lease_s=3", backend=os.environ["STREAM"])
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=2)

@app.task(name="part")
def part(number):
    time.sleep(0.05)  # so that a kill meets some of them
    return number
"""


@pytest.fixture
def workers(database: str, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """Starts workers, each in a process group of its own."""
    with Database(database).session() as session:
        migrate(session)
    (tmp_path / "chords.py").write_text(_APP)
    env = os.environ | {"STREAM": f"ems+{database}", "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    started: list[Any] = []

    def start() -> Any:
        name = f"w{len(started)}@here"
        command = [sys.executable, "-m", "celery", "-A", "chords", "worker", "-c", "2", "-Q", "celery", "-n", name]
        with (tmp_path / f"{len(started)}.log").open("w") as log:
            started.append(
                subprocess.Popen(
                    command, env=env, cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )
            )
        return started[-1]

    yield start
    for process in started:
        _kill(process)


def _kill(process: Any) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _arrived(database: str) -> int:
    connection = connect(database)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT COALESCE(SUM(arrived), 0) FROM ems_celery_chord")
            return int(cursor.fetchall()[0][0])
    finally:
        connection.close()


def _bodies(app: Celery) -> Counter[int]:
    """The bodies that were sent, by the number of their chord."""
    found: Counter[int] = Counter()
    with app.connection_for_read() as connection, connection.SimpleQueue("bodies") as queue:
        timeout = 30.0
        while True:
            try:
                message = queue.get(timeout=timeout)
            except Empty:
                return found
            message.ack()
            (parts, number), _, _ = message.payload
            assert sorted(parts) == list(range(PARTS))
            found[number] += 1
            timeout = 5.0


@pytest.mark.slow
@pytest.mark.chaos
def test_the_body_is_sent_once_whatever_is_killed(workers: Callable[[], Any], database: str) -> None:
    app = Celery("chords", broker=f"ems+{database}", backend=f"ems+{database}", set_as_current=False)
    part, body = app.signature("part"), app.signature("body", queue="bodies")
    for number in range(CHORDS):
        chord([part.clone((one,)) for one in range(PARTS)], app=app)(body.clone((number,)))
    dice = random.Random(16)
    for _ in range(3):
        process, arrived = workers(), _arrived(database)
        until(lambda arrived=arrived: _arrived(database) > arrived, WAIT_S, "parts arrive")  # type: ignore[misc]
        time.sleep(dice.random())  # the moment of the kill is what the test varies
        _kill(process)
        if _arrived(database) == CHORDS * PARTS:
            break
    last = workers()
    until(lambda: _arrived(database) == CHORDS * PARTS, WAIT_S, "all parts arrive")
    _kill(last)
    assert _bodies(app) == dict.fromkeys(range(CHORDS), 1)
    app.backend._storage.close()
    app.close()
