"""Locks on the stream's tables that hold up others: the beat tells whose they are, if it may see them."""

import threading
from collections.abc import Iterator

import pytest

from emsworker.beat import server as beat_locks
from emsworker.beat.server import WatchLocks
from emsworker.core.config import Settings
from emsworker.local import LocalDatabase
from emsworker.store.engine.database import Database
from emsworker.store.engine.sql import Sql
from emsworker.store.inspect.locks import list_holders
from tests.support.prepared import PreparedDatabase
from tests.support.roles import users
from tests.support.servers import TestServers, chosen_flavors, connect
from tests.support.streams import Stream
from tests.support.waiting import until

RIGHT = {"mariadb": "PROCESS ON *.*", "mysql": "SELECT ON performance_schema.*"}


_POLL_S = 0.15  # MariaDB reads its lists of locks anew only if nobody has read them for a tenth of a second


@pytest.fixture(scope="module", params=chosen_flavors())
def server(servers: TestServers, request: pytest.FixtureRequest) -> Iterator[LocalDatabase]:
    """A server with performance_schema, as servers have it by default; that of the other tests goes without."""
    if request.param == "mariadb":
        yield servers.database("mariadb")
        return
    own = PreparedDatabase(servers.folder / "locks", request.param, options={"performance-schema": "ON"})
    try:
        own.start(120)
        yield own
    finally:
        own.kill()


@pytest.fixture
def blocked(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """A connection that holds a partition's row, and a send that waits for it."""
    monkeypatch.setattr(beat_locks, "_LONG_S", 0.3)
    monkeypatch.setattr(beat_locks, "_FORGET_S", 0.0)
    app = stream.app()
    app.send("t", 1)
    with connect(stream.url) as holder:
        with holder.cursor() as cursor:
            cursor.execute("SELECT next_offset FROM ems_partition FOR UPDATE")
        sending = threading.Thread(target=app.send, args=("t", 2), name="sends")
        sending.start()
        yield holder
        holder.rollback()
        sending.join(30)


def test_the_beat_names_the_connection_that_holds_up_others(
    stream: Stream, server: LocalDatabase, blocked: object, caplog: pytest.LogCaptureFixture
) -> None:
    watch, settings = WatchLocks(), Settings(beat_s=0.05)
    with users(server, stream.url) as make, Database(make("beat", also=[RIGHT[server.flavor]])).session() as session:
        until(lambda: watch(session, settings) and watch.held_s > 0.5, 20, "it is seen", _POLL_S)
        number = blocked.thread_id()  # type: ignore[attr-defined]
        lines = [line for line in caplog.messages if line.startswith(f"connection {number} of ems@")]
        assert lines and "by a lock on ems_partition; 1 wait, and" in lines[0] and f"KILL {number}" in lines[0]
        blocked.rollback()  # type: ignore[attr-defined]
        until(lambda: watch(session, settings) and not watch.held_s, 20, "it is over", _POLL_S)
        assert caplog.messages[-1].startswith(f"connection {number} no longer holds up others, after")


def test_a_beat_that_may_not_see_locks_does_the_rest(
    stream: Stream, server: LocalDatabase, blocked: object, caplog: pytest.LogCaptureFixture
) -> None:
    watch = WatchLocks()
    with users(server, stream.url) as make, Database(make("beat")).session() as session:
        assert watch(session, Settings()) == 300.0 and watch.held_s == 0.0
        assert session.rows(Sql("SELECT 1")), "the session goes on"
    assert caplog.messages == []


def test_neither_who_waits_is_named_nor_who_holds_other_tables(
    stream: Stream, server: LocalDatabase, blocked: object
) -> None:
    """Of a chain only the first link can be ended with effect."""
    stream.rows("CREATE TABLE own (id INT PRIMARY KEY) ENGINE=InnoDB")
    stream.rows("INSERT INTO own VALUES (1)")
    lock = "SELECT * FROM own FOR UPDATE"

    def wait() -> None:
        with connect(stream.url) as waiter, waiter.cursor() as cursor:
            cursor.execute(lock)

    watch, settings = WatchLocks(), Settings(beat_s=0.05)
    with connect(stream.url) as other, other.cursor() as cursor:
        cursor.execute(lock)
        waiting = threading.Thread(target=wait)
        waiting.start()
        app = stream.app()
        more = threading.Thread(target=app.send, args=("t", 3))
        more.start()
        with (
            users(server, stream.url) as make,
            Database(make("beat", also=[RIGHT[server.flavor]])).session() as session,
        ):

            def seen() -> list[tuple[int, int]]:
                found = list_holders(session, is_mariadb=server.flavor == "mariadb")
                return [(one.connection_id, one.waiting) for one in found]

            number = blocked.thread_id()  # type: ignore[attr-defined]
            until(lambda: seen() == [(number, 2)], 20, "both sends wait for it", _POLL_S)
            assert watch(session, settings) == 0.1 and [key[1] for key in watch._held] == [number]
        other.rollback()
        waiting.join(30)
        blocked.rollback()  # type: ignore[attr-defined]
        more.join(30)
