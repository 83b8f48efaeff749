"""Publishing inside a transaction: with the commit exactly once, without it never, and nobody waits for it."""

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pymysql
import pytest
import sqlalchemy
from sqlalchemy.orm import Session as OrmSession

from emsworker import Ems, Middleware, Receipt
from emsworker.beat.relay import Relay
from emsworker.core.config import Settings
from emsworker.core.errors import ConfigError, ConnectionLost, StoreUnavailable, TransactionEnded, TransactionRolledBack
from emsworker.core.url import DatabaseUrl
from emsworker.publish.outgoing import Outgoing
from emsworker.store.engine.nodes import nodes_of
from emsworker.store.engine.session import Result, Session
from emsworker.store.stream import outbox
from tests.support.servers import OWN_SETTINGS
from tests.support.streams import Stream
from tests.support.waiting import never, until

READ = "SELECT COUNT(*) FROM ems_message WHERE `offset` > 0"
LATE = "SELECT COUNT(*) FROM ems_outbox"


@pytest.fixture(autouse=True)
def business(stream: Stream) -> None:
    stream.rows("CREATE TABLE orders (n INT PRIMARY KEY) ENGINE=InnoDB")


@contextmanager
def beat(stream: Stream) -> Iterator[list[tuple[int, float]]]:
    """The relay's service alone, as the beat calls it: after each look, what is in the stream, and the pause until the next."""
    stopped = threading.Event()
    looks: list[tuple[int, float]] = []

    def work() -> None:
        relay = Relay()
        with stream.new_session() as session:
            while not stopped.is_set():
                pause_s = relay(session, Settings())
                looks.append((session.rows(READ)[0][0], pause_s))
                stopped.wait(pause_s)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield looks
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


def test_a_commit_sends_exactly_one_and_a_rollback_none(stream: Stream) -> None:
    told: list[str] = []

    class Watch(Middleware):
        def after_publish(self, outgoing: Outgoing, receipt: Receipt) -> None:
            told.append(receipt.id)

    app = Ems("test", url=stream.url, middleware=[Watch()])
    stream.apps.append(app)
    order(app, stream, 1, good=True)
    assert stream.rows("SELECT body FROM ems_message WHERE `offset` > 0") == [(b'{"n":1}',)], (
        "in the stream when the block ends"
    )
    with pytest.raises(RuntimeError):
        order(app, stream, 2, good=False)
    with pytest.raises(pymysql.err.IntegrityError):
        order(app, stream, 1, good=True)
    order(app, stream, 3, good=True)
    assert (stream.value(READ), stream.value(LATE), len(told)) == (2, 0, 2)
    assert stream.rows("SELECT n FROM orders ORDER BY n") == [(1,), (3,)]


def test_messages_of_a_transaction_keep_their_order(stream: Stream) -> None:
    app = stream.app()
    with app.transaction() as tx:
        for number in range(20):
            tx.send("t", number, key="k")
        tx.send_many("t", range(20, 1300), key="k")
    with beat(stream):
        until(lambda: stream.value(LATE) == 0, 10, "all are moved")
    bodies = [int(row[0]) for row in stream.rows("SELECT body FROM ems_message WHERE `offset` > 0 ORDER BY `offset`")]
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
    return sqlalchemy.create_engine(
        stream.url.replace("mysql://", "mysql+pymysql://"),
        poolclass=sqlalchemy.NullPool,
        connect_args={"init_command": OWN_SETTINGS},
    )


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


def by_name(stream: Stream, app: Ems, number: int) -> Callable[[str], None]:
    connection = stream.other()
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (%s)", (number,))
    app.send_task("far.away", [number], topic="t", transaction=connection)

    def end(how: str) -> None:
        getattr(connection, how)()
        connection.close()

    return end


@pytest.mark.parametrize("begin", [with_pymysql, with_sqlalchemy, with_orm, by_name])
def test_on_a_connection_of_the_callers(stream: Stream, begin: Callable[..., Callable[[str], None]]) -> None:
    app = stream.app()
    stream.topic("t")
    begin(stream, app, 1)("rollback")
    end = begin(stream, app, 2)
    never(lambda: stream.value(READ) + stream.value(LATE), 0.1, "seen before the commit")
    end("commit")
    until(lambda: stream.value(READ) == 1, 5, "this process moves it by itself")
    assert (stream.value(LATE), stream.rows("SELECT n FROM orders")) == (0, [(2,)])


@pytest.mark.parametrize("what", [object(), sqlalchemy.create_engine("sqlite://").connect()])
def test_what_is_no_connection_to_mysql_is_refused(stream: Stream, what: Any) -> None:
    with pytest.raises(ConfigError, match=r"transaction = a .*: give the object of"):
        stream.app().send("t", 1, transaction=what)
    assert stream.value(LATE) == 0


def test_it_is_visible_soon_after_a_foreign_commit_by_the_beat_alone(stream: Stream) -> None:
    """Counted in looks of the relay: those in the middle of one at the commit may miss it, the next one moves it."""
    app = stream.app()
    stream.topic("t")
    app.stream.outbox._mover.wake = lambda: None  # type: ignore[method-assign]  # as if the process ended at its commit
    with beat(stream) as looks, stream.other() as connection:
        for number in range(30):
            app.send("t", number, transaction=connection)
            connection.commit()
            ended = len(looks)
            until(lambda: looks and looks[-1][0] > number, 30, "moved")  # noqa: B023
            # None of these: the look that moved it ended before we had counted them.
            late = next((n for n, (seen, _) in enumerate(looks[ended:]) if seen > number), 0)
            assert late <= 1, f"moved by look {late} after the commit"
    pauses = [pause_s for (before, _), (seen, pause_s) in pairwise(looks) if seen > before]
    assert statistics.median(pauses) <= 0.025, "while something comes it looks every 25 ms"


@pytest.mark.timeout(180)
def test_a_transaction_held_open_blocks_neither_producers_nor_the_relay(stream: Stream) -> None:
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
        assert longest < 5.0, "whoever waits for a lock of theirs waits for so long at least"
        for end in held:
            end("commit")
        until(lambda: stream.value(READ) == 3 * (number - 10) + 2, 5, "and the held ones after their commit")


class LosesCommit(Session):
    """Its commit reaches the server or not, and the answer is lost."""

    arrives = True

    def send(self, sql: str) -> list[Result]:
        if "COMMIT" not in sql:
            return super().send(sql)
        if self.arrives:
            super().send(sql)
        self.drop()
        raise ConnectionLost("gone")


@pytest.mark.parametrize("arrives", [True, False])
def test_a_lost_answer_to_commit_is_looked_up(stream: Stream, arrives: bool) -> None:
    app = stream.app()
    session = LosesCommit(stream.session._url, stream.session._nodes)
    session.arrives = arrives
    app.stream.outbox._idle.append(session)
    if arrives:
        order(app, stream, 1, good=True)
    else:
        with pytest.raises(StoreUnavailable, match="may or may not have been kept"):
            order(app, stream, 1, good=True)
    until(lambda: stream.value("SELECT COUNT(*) FROM orders") == arrives, 5, "the server has ended it")
    assert stream.value(LATE) + stream.value(READ) == arrives


def test_delays_have_names(stream: Stream) -> None:
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
            "SELECT TIMESTAMPDIFF(MICROSECOND, created_at, due_at) / 1000000 FROM ems_outbox ORDER BY due_at"
        )
    ]
    minutes = [60.0 * n for n in (*range(1, 11), 20, 30, 60, 120)]
    assert seconds == sorted([1.0, 5.0, 10.0, 30.0, 90.5, *minutes])
    with pytest.raises(ConfigError, match="'soon' is not a duration"):
        app.send("t", 1, delay="soon")
    with pytest.raises(ConfigError, match="give either countdown or delay"):
        app.send("t", 1, delay="1s", countdown=2)


def _lose_a_deadlock(stream: Stream, tx: Any) -> pymysql.MySQLError:
    """Make the transaction the victim: the other one has changed more."""
    other = stream.other()
    other.query(f"INSERT INTO orders VALUES {','.join(f'({number})' for number in range(5000, 5100))}")
    other.query("UPDATE orders SET n = 1002 WHERE n = 802")
    tx.execute("UPDATE orders SET n = 1001 WHERE n = 801")
    waits = threading.Thread(target=lambda: other.query("UPDATE orders SET n = 2001 WHERE n = 801"))
    waits.start()
    try:
        tx.execute("UPDATE orders SET n = 2002 WHERE n = 802")
        until(lambda: not waits.is_alive(), 10, "the other one has gone on")
        raise AssertionError("it was not the victim")
    except pymysql.MySQLError as error:
        return error
    finally:
        waits.join(10)
        other.rollback()
        other.close()


def test_a_deadlock_that_the_block_swallows_keeps_nothing_and_says_so(stream: Stream) -> None:
    app = stream.app()
    stream.rows("INSERT INTO orders VALUES (801), (802)")
    with pytest.raises(TransactionRolledBack, match=r"Deadlock.*run the block again"), app.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (1)")
        tx.send("t", {"n": 1})
        assert _lose_a_deadlock(stream, tx).args[0] == 1213
        with pytest.raises(pymysql.MySQLError, match="1213"):
            tx.execute("INSERT INTO orders VALUES (2)")
        with pytest.raises(pymysql.MySQLError, match="1213"):
            tx.send("t", {"n": 2})
    assert (stream.value(READ), stream.value(LATE)) == (0, 0)
    assert stream.rows("SELECT n FROM orders ORDER BY n") == [(801,), (802,)]
    order(app, stream, 3, good=True)
    assert (stream.value(READ), stream.value("SELECT COUNT(*) FROM orders WHERE n = 3")) == (1, 1)


def test_a_block_that_ends_its_transaction_is_told_so(stream: Stream) -> None:
    app = stream.app()
    with pytest.raises(TransactionEnded, match="may have been kept"), app.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (1)")
        tx.execute("COMMIT")
        tx.execute("INSERT INTO orders VALUES (2)")
        tx.send("t", {"n": 2})
    assert stream.rows("SELECT n FROM orders") == [(1,)]
    assert (stream.value(READ), stream.value(LATE)) == (0, 0)
    order(app, stream, 3, good=True)


def test_a_block_that_changes_its_session_changes_only_its_own(stream: Stream) -> None:
    app = stream.app()
    for good in (True, False):
        with contextlib.suppress(RuntimeError), app.transaction() as tx:
            tx.execute("SET time_zone = '-08:00', sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES', sql_select_limit = 1")
            tx.execute("SELECT GET_LOCK('mine', 0)")
            tx.execute("USE information_schema")
            tx.send("t", {"n": "it's \\ 'quoted'"}, countdown=3600)
            if not good:
                raise RuntimeError("no")
        with app.transaction() as tx:
            cursor = tx.execute("SELECT @@time_zone, @@sql_mode LIKE '%%ANSI%%', DATABASE(), IS_USED_LOCK('mine')", ())
            assert cursor.fetchone()[:3] == ("+00:00", 0, stream.url.rsplit("/", 1)[1])
    assert stream.rows("SELECT TIMESTAMPDIFF(MINUTE, UTC_TIMESTAMP(6), due_at) IN (59, 60) FROM ems_outbox") == [(1,)]


def test_the_first_transaction_after_a_loss_finds_a_connection(stream: Stream) -> None:
    """Nothing has happened in it yet, so nothing is lost by another one."""
    app = stream.app()
    order(app, stream, 1, good=True)
    number = app.stream.outbox._idle[0].rows("SELECT CONNECTION_ID()")[0][0]
    stream.rows("KILL %s", number)
    until(lambda: not stream.rows("SELECT 1 FROM information_schema.processlist WHERE id = %s", number), 5, "killed")
    app.stream.outbox._idle[0]._used_at = 0.0  # as if it had idled
    order(app, stream, 2, good=True)
    assert stream.value(READ) == 2


def test_a_connection_that_is_lost_in_a_transaction_is_no_bare_error_of_the_driver(stream: Stream) -> None:
    app = stream.app()
    with pytest.raises(StoreUnavailable, match="nothing was kept"), app.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (1)")
        stream.rows("KILL %s", tx.cursor().connection.thread_id())
        tx.execute("INSERT INTO orders VALUES (2)")
    until(lambda: stream.rows("SELECT n FROM orders") == [], 5, "rolled back")
    order(app, stream, 3, good=True)


def test_without_a_server_a_transaction_is_store_unavailable(stream: Stream) -> None:
    app = stream.app(publish_timeout_s=0.5)
    order(app, stream, 1, good=True)
    app.stream.outbox._idle[0].drop()
    app.stream.outbox._idle[0]._nodes = nodes_of(DatabaseUrl.parse("mysql://nobody@127.0.0.1:1/none"))
    with pytest.raises(StoreUnavailable), app.transaction():
        raise AssertionError("there is none")


def test_the_mover_outlives_what_nobody_has_foreseen(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a program of the user's nothing starts it again."""
    good = outbox.relay_due
    calls: list[Any] = []

    def relay_due(*args: Any, **options: Any) -> outbox.Round:
        calls.append(args)
        if len(calls) == 1:
            raise LookupError("nobody has foreseen this")
        return good(*args, **options)

    monkeypatch.setattr(outbox, "relay_due", relay_due)
    app = stream.app()
    end = with_pymysql(stream, app, 1)
    until(lambda: calls, 10, "it has failed")
    end("commit")
    until(lambda: stream.value(LATE) == 0, 10, "it goes on, without any beat")
