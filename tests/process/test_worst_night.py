"""What a worker, its beat, its probes, the dashboard and ``ems check`` say when the server has no room, or refuses them."""

import contextlib
import re
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from emsworker.admin.check import Severity, check
from emsworker.core.errors import StoreUnavailable
from emsworker.store.engine.database import Database
from emsworker.store.engine.probe import check_room
from emsworker.web import Visitor, ems_web
from tests.process.stream import Stream
from tests.process.test_probes import ask, wait_for
from tests.support.full_disk import full_disk
from tests.support.roles import MakeUser, users
from tests.support.servers import connect
from tests.support.waiting import until


@pytest.fixture
def as_role(stream: Stream) -> Iterator[MakeUser]:
    with users(stream.server, stream.url) as make:
        yield make


@contextlib.contextmanager
def _locked_out(stream: Stream, url: str) -> Iterator[None]:
    """The user has another password meanwhile, and its connections are cut."""
    match = re.search(r"//(\w+):", url)
    assert match is not None
    with connect(stream.server.admin_url, autocommit=True) as root, root.cursor() as cursor:

        def change(password: str) -> None:
            for host in ("localhost", "127.0.0.1"):
                cursor.execute(f"ALTER USER '{match[1]}'@'{host}' IDENTIFIED BY '{password}'")

        change("another")
        cursor.execute("SELECT id FROM information_schema.PROCESSLIST WHERE user = %s", (match[1],))
        for (number,) in cursor.fetchall():
            with contextlib.suppress(Exception):  # it may have ended by itself
                cursor.execute(f"KILL {number}")
        try:
            yield
        finally:
            change("pw")


def test_a_user_who_is_refused_is_told_by_all(stream: Stream, as_role: MakeUser) -> None:
    url = as_role("worker", ["auto-create", "beat"])
    worker, beat = stream.worker(http="0", settings={"url": url}), stream.beat({"url": url}, http="0")
    for program in (worker, beat):
        wait_for(program, "readyz", 200)
    site = TestClient(ems_web(url, access=lambda request: Visitor("ann", "reader")))
    assert site.get("/groups").status_code == 200
    with _locked_out(stream, url):
        for program in (worker, beat):
            reason = wait_for(program, "readyz", 503)["reason"]
            assert "the server refuses the user: MySQL refused: (1045)" in reason and "lease" not in reason
            assert ask(program, "livez")[0] == 200, "a restart would not help"
            until(lambda program=program: "refuses the user: MySQL refused: (1045)" in program.text(), 30, "it says so")
        page = TestClient(ems_web(url, access=lambda request: Visitor("ann", "reader"))).get("/groups")
        assert page.status_code == 503 and "The database server refuses the dashboard" in page.text
        assert page.headers["retry-after"] == "5"
    for program in (worker, beat):
        wait_for(program, "readyz", 200)
        until(lambda program=program: "takes the user again, after" in program.text(), 30, "it says that it is over")
        assert program.text().count("refuses the user: MySQL refused") == 1
        assert "has not answered" not in program.text()
    assert worker.stop() == beat.stop() == 0


def test_a_full_disk_is_told_by_all(stream: Stream) -> None:
    beat = stream.beat(http="0", settings={"beat_s": 0.1})
    until(lambda: ask(beat, "readyz")[1].get("leading"), 40, "it leads")
    worker = stream.worker(http="0", settings={"beat_s": 0.1}, no_beat=True)
    stream.send("acts", [{"n": 1}])
    stream.wait_ended([1])
    found = {one.name: one for one in check(stream.url, None, environ={})}
    assert found["disk"].severity is Severity.OK
    with full_disk(stream.server, stream.url):
        assert "the disk of the server is full: " in wait_for(beat, "readyz", 503)["reason"]
        assert ask(beat, "livez")[0] == 200
        until(lambda: "has a full disk: " in beat.text(), 30, "it is in the log")
        found = {one.name: one for one in check(stream.url, None, environ={})}
        assert (found["disk"].severity, found["disk"].value) == (Severity.ERROR, "full")
        assert "Make room" in found["disk"].fix
        with pytest.raises(StoreUnavailable, match="has had no room to write for"):
            Database(stream.url).call(check_room, 0.1)
        assert ask(worker, "readyz")[0] == 200, "it works on what is there"
    wait_for(beat, "readyz", 200)
    until(lambda: "has room again, after" in beat.text(), 30, "it says that it is over")
    assert beat.text().count("has a full disk") == 1
    stream.send("acts", [{"n": 2}])
    stream.wait_ended([1, 2])
    assert worker.stop() == beat.stop() == 0
