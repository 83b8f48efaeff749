"""Publishing inside a transaction (W7): with the commit exactly once, without it never, and nobody waits for it."""

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
import pytest
import sqlalchemy
from sqlalchemy.orm import Session as OrmSession

from emsworker import Ems, Middleware, Receipt
from emsworker.core.config import Settings
from emsworker.core.errors import ConfigError, StoreUnavailable
from emsworker.declaring.task import Outgoing
from emsworker.runtime.duties import Relay
from emsworker.store.errors import ConnectionLost
from emsworker.store.session import Session
from tests.support.streams import Stream
from tests.support.waiting import never, until

READ = "SELECT COUNT(*) FROM ems_message"
LATE = "SELECT COUNT(*) FROM ems_pending"


@pytest.fixture(autouse=True)
def business(stream: Stream) -> None:
    stream.rows("CREATE TABLE orders (n INT PRIMARY KEY) ENGINE=InnoDB")


@contextmanager
def beat(stream: Stream) -> Iterator[None]:
    """The relay's duty alone, as the beat calls it."""
    stopped = threading.Event()

    def work() -> None:
        relay = Relay()
        with stream.new_session() as session:
            while not stopped.wait(relay(session, Settings())):
                pass

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(10)


def order(app: Ems, stream: Stream, number: int, *, good: bool) -> None:
    with app.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (%s)", (number,))
        tx.send("t", {"n": number}, key="k")
        assert stream.value(LATE) == 0, "nobody sees it yet"
        if not good:
            raise RuntimeError("no")


def test_w7_a_commit_sends_exactly_one_and_a_rollback_none(stream: Stream) -> None:
    told: list[str] = []

    class Watch(Middleware):
        def after_publish(self, outgoing: Outgoing, receipt: Receipt) -> None:
            told.append(receipt.id)

    app = Ems("test", url=stream.url, middleware=[Watch()])
    stream.apps.append(app)
    order(app, stream, 1, good=True)
    assert stream.rows("SELECT body FROM ems_message") == [(b'{"n":1}',)], "in the stream when the block ends"
    with pytest.raises(RuntimeError):
        order(app, stream, 2, good=False)
    with pytest.raises(pymysql.err.IntegrityError):
        order(app, stream, 1, good=True)
    order(app, stream, 3, good=True)
    assert (stream.value(READ), stream.value(LATE), len(told)) == (2, 0, 2)
    assert stream.rows("SELECT n FROM orders ORDER BY n") == [(1,), (3,)]


def test_w7_messages_of_a_transaction_keep_their_order(stream: Stream) -> None:
    app = stream.app()
    with app.transaction() as tx:
        for number in range(20):
            tx.send("t", number, key="k")
        tx.send_many("t", range(20, 1300), key="k")
    with beat(stream):
        until(lambda: stream.value(LATE) == 0, 10, "all are moved")
    bodies = [int(row[0]) for row in stream.rows("SELECT body FROM ems_message ORDER BY `offset`")]
    assert bodies == list(range(1300))


def with_pymysql(stream: Stream, app: Ems, number: int) -> Callable[[str], None]:
    connection = stream.other()
    connection.query("SET time_zone = '+05:30'")
    connection.query("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (%s)", (number,))
    app.send("t", {"n": number}, transaction=connection)

    def end(how: str) -> None:
        getattr(connection, how)()
        connection.close()

    return end


def _engine(stream: Stream) -> sqlalchemy.Engine:
    return sqlalchemy.create_engine(stream.url.replace("mysql://", "mysql+pymysql://"), poolclass=sqlalchemy.NullPool)


def with_sqlalchemy(stream: Stream, app: Ems, number: int) -> Callable[[str], None]:
    connection = _engine(stream).connect()
    connection.execute(sqlalchemy.text("INSERT INTO orders VALUES (:n)"), {"n": number})
    app.send_many("t", [{"n": number}], transaction=connection)

    def end(how: str) -> None:
        getattr(connection, how)()
        connection.close()

    return end


def with_orm(stream: Stream, app: Ems, number: int) -> Callable[[str], None]:
    session = OrmSession(_engine(stream))
    session.execute(sqlalchemy.text("INSERT INTO orders VALUES (:n)"), {"n": number})

    @app.task(name=f"bill-{number}", topic="t")
    def bill(n: int) -> None: ...

    bill.apply_async([number], transaction=session)

    def end(how: str) -> None:
        getattr(session, how)()
        session.close()

    return end


@pytest.mark.parametrize("begin", [with_pymysql, with_sqlalchemy, with_orm])
def test_w7_on_a_connection_of_the_callers(stream: Stream, begin: Callable[..., Callable[[str], None]]) -> None:
    app = stream.app()
    stream.topic("t")
    begin(stream, app, 1)("rollback")
    end = begin(stream, app, 2)
    never(lambda: stream.value(READ) + stream.value(LATE), 0.1, "seen before the commit")
    end("commit")
    until(lambda: stream.value(READ) == 1, 5, "this process moves it by itself")
    assert (stream.value(LATE), stream.rows("SELECT n FROM orders")) == (0, [(2,)])


@pytest.mark.parametrize("what", [object(), sqlalchemy.create_engine("sqlite://").connect()])
def test_w7_what_is_no_connection_to_mysql_is_refused(stream: Stream, what: Any) -> None:
    with pytest.raises(ConfigError, match=r"transaction = a .*: give the object of"):
        stream.app().send("t", 1, transaction=what)
    assert stream.value(LATE) == 0


@pytest.mark.alone
def test_w7_it_is_visible_soon_after_a_foreign_commit_by_the_beat_alone(stream: Stream) -> None:
    app = stream.app()
    stream.topic("t")
    app.outbox._mover.wake = lambda: None  # type: ignore[method-assign]  # as if the process ended at its commit
    late = []
    with beat(stream), stream.other() as connection:
        for number in range(30):
            app.send("t", number, transaction=connection)
            time.sleep(0.01 * (number % 3))
            connection.commit()
            started = time.monotonic()
            until(lambda seen=number + 1: stream.value(READ) == seen, 5, "moved", poll_s=0.002)
            late.append(time.monotonic() - started)
    assert statistics.median(late) < 0.05, sorted(late)


@pytest.mark.alone
@pytest.mark.timeout(180)
def test_w7_a_transaction_held_open_blocks_neither_producers_nor_the_relay(stream: Stream) -> None:
    seconds = 60 if os.environ.get("EMS_TEST_LONG") == "1" else 3
    app = stream.app()
    stream.topic("t")
    held = [with_pymysql(stream, app, 1), with_sqlalchemy(stream, app, 2)]
    longest = 0.0
    with beat(stream):
        deadline = time.monotonic() + seconds
        number = 10
        while time.monotonic() < deadline:
            started = time.monotonic()
            app.send("t", number)
            app.send("t", number, countdown=0)
            with app.transaction() as tx:
                tx.send("t", number)
            longest = max(longest, time.monotonic() - started)
            number += 1
        until(lambda: stream.value(LATE) == 0, 5, "everything committed is moved")
        assert stream.value(READ) == 3 * (number - 10)
        assert longest < 1.0
        for end in held:
            end("commit")
        until(lambda: stream.value(READ) == 3 * (number - 10) + 2, 5, "and the held ones after their commit")


class LosesCommit(Session):
    """Its commit reaches the server or not, and the answer is lost."""

    arrives = True

    def commit(self) -> None:
        if self.arrives:
            super().commit()
        self.drop()
        raise ConnectionLost("gone")


@pytest.mark.parametrize("arrives", [True, False])
def test_w7_a_lost_answer_to_commit_is_looked_up(stream: Stream, arrives: bool) -> None:
    app = stream.app()
    session = LosesCommit(stream.session._url)
    session.arrives = arrives
    app.outbox._idle.append(session)
    if arrives:
        order(app, stream, 1, good=True)
    else:
        with pytest.raises(StoreUnavailable, match="may or may not have been kept"):
            order(app, stream, 1, good=True)
    until(lambda: stream.value("SELECT COUNT(*) FROM orders") == arrives, 5, "the server has ended it")
    assert stream.value(LATE) + stream.value(READ) == arrives


def test_w8_delays_have_names(stream: Stream) -> None:
    app = stream.app()
    levels = [
        "1s",
        "5s",
        "10s",
        "30s",
        "1m",
        "2m",
        "3m",
        "4m",
        "5m",
        "6m",
        "7m",
        "8m",
        "9m",
        "10m",
        "20m",
        "30m",
        "1h",
        "2h",
    ]
    app.send_many("t", [0], delay="90.5s")
    for level in levels:
        app.send("t", level, delay=level)
    seconds = [
        float(row[0])
        for row in stream.rows(
            "SELECT TIMESTAMPDIFF(MICROSECOND, created_at, due_at) / 1000000 FROM ems_pending ORDER BY due_at"
        )
    ]
    minutes = [60.0 * n for n in (*range(1, 11), 20, 30, 60, 120)]
    assert seconds == sorted([1.0, 5.0, 10.0, 30.0, 90.5, *minutes])
    with pytest.raises(ConfigError, match="'soon' is not a duration"):
        app.send("t", 1, delay="soon")
    with pytest.raises(ConfigError, match="give either countdown or delay"):
        app.send("t", 1, delay="1s", countdown=2)
