"""Chords whose workers are killed: the body of each is sent exactly once."""

import fcntl
import os
import random
import struct
import termios
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from celery import Celery, chord

from emsworker.store.engine.database import Database
from tests.celery.programs import Programs, take_all
from tests.support.servers import connect
from tests.support.tables import migrate
from tests.support.waiting import until

WAIT_S = 240
CHORDS, PARTS = 4, 12

# A part ends when it has read a byte from the gate: so the test decides how far a worker comes, and each kill meets
# parts that run.
_APP = """
import os
from celery import Celery
app = Celery("chords", broker=os.environ["STREAM"] + "?lease_s=3", backend=os.environ["STREAM"])
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=2)

@app.task(name="part")
def part(number):
    with open("gate", "rb", buffering=0) as gate:
        gate.read(1)
    return number
"""


@pytest.fixture
def programs(database: str, tmp_path: Path) -> Iterator[Programs]:
    with Database(database).session() as session:
        migrate(session)
    with Programs(tmp_path, "chords", _APP, f"ems+{database}") as programs:
        yield programs


@pytest.fixture
def let_pass(tmp_path: Path) -> Iterator[Callable[[int], None]]:
    """``let_pass(3)``: let parts end, until three may that have not."""
    os.mkfifo(tmp_path / "gate")
    gate = os.open(tmp_path / "gate", os.O_RDWR)

    def let_pass(count: int) -> None:
        (unread,) = struct.unpack("i", fcntl.ioctl(gate, termios.FIONREAD, struct.pack("i", 0)))
        os.write(gate, b"." * (count - unread))

    yield let_pass
    os.close(gate)


def _arrived(database: str) -> int:
    connection = connect(database)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT COALESCE(SUM(arrived), 0) FROM ems_celery_chord")
            return int(cursor.fetchall()[0][0])
    finally:
        connection.close()


def _pass_until(let_pass: Callable[[int], None], database: str, count: int) -> None:
    def passed() -> bool:
        let_pass(1)
        return _arrived(database) >= count

    until(passed, WAIT_S, f"{count} parts have arrived")


def _bodies(app: Celery) -> Counter[int]:
    """The bodies that were sent, by the number of their chord."""
    found: Counter[int] = Counter()
    for (parts, number), _, _ in take_all(app, "bodies"):
        assert sorted(parts) == list(range(PARTS))
        found[number] += 1
    return found


@pytest.mark.slow
@pytest.mark.chaos
def test_the_body_is_sent_once_whatever_is_killed(
    programs: Programs, let_pass: Callable[[int], None], database: str
) -> None:
    app = Celery("chords", broker=f"ems+{database}", backend=f"ems+{database}", set_as_current=False)
    part, body = app.signature("part"), app.signature("body", queue="bodies")
    for number in range(CHORDS):
        chord([part.clone((one,)) for one in range(PARTS)], app=app)(body.clone((number,)))
    dice = random.Random(16)
    # The last kills come while few parts are left, and so meet the ends of chords.
    for left in (36, 20, 8, 3):
        worker = programs.start("worker", "-c", "2", "-Q", "celery", "-n", "w{number}@here")
        _pass_until(let_pass, database, CHORDS * PARTS - left)
        let_pass(dice.randint(1, 3))
        programs.kill(worker)
    programs.start("worker", "-c", "2", "-Q", "celery", "-n", "last@here")
    _pass_until(let_pass, database, CHORDS * PARTS)
    assert _bodies(app) == dict.fromkeys(range(CHORDS), 1)
    app.backend._storage.close()
    app.close()
