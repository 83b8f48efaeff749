"""The disk of the server is full for a while (EMS_TEST_LONG=1; ``./dev chaos --only "disk full"`` is the same)."""

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from emsworker import Ems
from emsworker.admin import Admin
from emsworker.admin.check import Severity, check
from emsworker.core.errors import StoreUnavailable
from emsworker.local import LocalDatabase
from emsworker.store.engine.database import Database
from emsworker.store.engine.probe import check_room
from tests.process.stream import Stream, open_stream
from tests.process.test_probes import ask, wait_for
from tests.support.waiting import until
from tests.support.webhooks import Receiver, receiver
from verification.chaos import table
from verification.chaos.running import run_scenarios
from verification.chaos.scenarios import SCENARIOS
from verification.chaos.sites import CannotMount, Disk, on_a_small_disk

pytestmark = [
    pytest.mark.few,
    pytest.mark.chaos,
    pytest.mark.skipif(os.environ.get("EMS_TEST_LONG") != "1", reason="20 to 90 s each: set EMS_TEST_LONG=1"),
]


@contextmanager
def _where_mounting_is_allowed() -> Iterator[None]:
    try:
        yield
    except CannotMount as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


def test_nothing_is_lost_when_the_disk_is_full(server: LocalDatabase, tmp_path: Path) -> None:
    scenario = next(one for one in SCENARIOS if one.name == "disk full")
    with _where_mounting_is_allowed():
        rows = list(run_scenarios([scenario], server, None, tmp_path / "arena", seed=1))
    for row in rows:
        assert row.good, f"{table.line(row)}\n{row.wrong}"


def test_a_disk_that_is_really_full_is_told_by_all(server: LocalDatabase, tmp_path: Path) -> None:
    """As tests/process/test_worst_night.py has it of a server that only says so."""
    if server.flavor == "mariadb":
        pytest.skip("MariaDB 10.11 dies of the first writes that are refused: FATAL, out of disk space in rollback")
    with _where_mounting_is_allowed(), on_a_small_disk(server, tmp_path) as site:
        assert site.disk
        with open_stream(site.server, tmp_path) as stream, receiver() as web:
            _fill_and_look(stream, site.disk, web)


def _fill_and_look(stream: Stream, disk: Disk, web: Receiver) -> None:
    Admin(stream.app).alarms.create("no-room", on="disk_full", above=0.5, webhook=web.url)
    beat = stream.beat(http="0", settings={"beat_s": 0.1})
    until(lambda: ask(beat, "readyz")[1].get("leading"), 60, "it leads")
    stream.send("acts", [{"n": 1}])
    disk.fill()
    _use_up_the_rest(stream)
    assert "the disk of the server is full: " in wait_for(beat, "readyz", 503)["reason"]
    assert ask(beat, "livez")[0] == 200
    until(lambda: "has a full disk: " in beat.text(), 60, "it is in the log")
    found = {one.name: one for one in check(stream.url, None, environ={})}
    assert (found["disk"].severity, found["disk"].value) == (Severity.ERROR, "full")
    until(lambda: web.events == [("no-room", "firing")], 60, f"the alarm fires; log:\n{stream.logs()}")
    assert stream.server.alive
    disk.free()
    wait_for(beat, "readyz", 200)
    until(lambda: "has room again, after" in beat.text(), 60, "it says that it is over")
    until(lambda: web.events[1:] == [("no-room", "resolved")], 60, f"it is over; log:\n{stream.logs()}")
    assert "Traceback" not in beat.text()
    worker = stream.worker(topics=["acts"], groups=["a"], beat=False)
    stream.send("acts", [{"n": 2}])
    stream.wait_ended([1, 2], 60)
    assert worker.stop() == beat.stop() == 0


def _use_up_the_rest(stream: Stream) -> None:
    """Send until what the tables have left of their own is gone: a message of 64 KB has no room."""
    database = Database(stream.url)

    def is_full() -> bool:
        with contextlib.suppress(StoreUnavailable):
            app.send_many("acts", [{"n": 0, "fill": "x" * 3000}] * 5)
            return False
        try:
            database.call(check_room, 0.1)
        except StoreUnavailable:
            return True
        return False

    with contextlib.closing(Ems("filler", url=stream.url, publish_timeout_s=0.1)) as app:
        until(is_full, 60, "the server has no room", 0.0)
