"""Sends in sessions of SQLAlchemy, and what its commit wakes."""

import asyncio
import contextlib
from collections import Counter
from typing import Any

import pymysql
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from emsworker.publish import outbox
from tests.support.streams import Stream
from tests.support.waiting import never, until

_BODIES = "SELECT body FROM ems_message WHERE `offset` > 0"
_INSERT = sqlalchemy.text("INSERT INTO orders VALUES (:n)")


@pytest.fixture(autouse=True)
def orders(stream: Stream) -> None:
    stream.rows("CREATE TABLE orders (n INT PRIMARY KEY) ENGINE=InnoDB")


@pytest.fixture(autouse=True)
def brief_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction lasts longer than the relay of a process looks for its messages."""
    monkeypatch.setattr(outbox, "_LIVELY_S", 0.05)


def _moved(stream: Stream, *bodies: int) -> None:
    expected = Counter(bodies)
    until(lambda: Counter(int(body) for (body,) in stream.rows(_BODIES)) == expected, 15, f"{bodies} are in the stream")
    assert Counter(n for (n,) in stream.rows("SELECT n FROM orders")) == expected


def _mover_rests(app: Any) -> None:
    until(lambda: app.stream.outbox._mover._thread is None, 15, "nobody looks any more")


def test_the_commit_of_a_session_wakes_the_relay_however_long_the_transaction_was(stream: Stream) -> None:
    app = stream.app()
    engine = sqlalchemy.create_engine(stream.url.replace("mysql://", "mysql+pymysql://"))

    @app.task
    def bill(n: int) -> None: ...

    def place(session: Any, n: int) -> None:
        session.execute(_INSERT, {"n": n})
        app.send("orders", n, transaction=session)

    with Session(engine) as session:
        for number in (1, 2):  # also a second time in the same session
            place(session, number)
            if number == 1:
                app.send("orders", -1, transaction=session)
                session.rollback()
                place(session, number)
            _mover_rests(app)
            with pytest.raises(ZeroDivisionError), session.begin_nested():
                place(session, number + 20)
                _ = 1 / 0
            with session.begin_nested():
                place(session, number + 10)
            _mover_rests(app)
            session.commit()
            _moved(stream, *(1, 11, 2, 12)[: 2 * number])
    scoped = scoped_session(sessionmaker(engine))
    place(scoped, 3)
    _mover_rests(app)
    scoped.commit()
    _moved(stream, 1, 11, 2, 12, 3)
    bill.using(transaction=scoped).delay(4)
    scoped.rollback()
    never(lambda: stream.value("SELECT COUNT(*) FROM ems_outbox"), 0.2, "it was rolled back")
    scoped.remove()
    engine.dispose()


def test_neither_side_keeps_a_connection_that_the_server_has_closed(stream: Stream) -> None:
    app = stream.app()
    engine = sqlalchemy.create_engine(stream.url.replace("mysql://", "mysql+pymysql://"), pool_pre_ping=True)
    for number in range(3):
        with Session(engine) as session, session.begin():
            session.execute(_INSERT, {"n": number})
            app.send("orders", number, transaction=session)
        _moved(stream, *range(number + 1))
        _mover_rests(app)
        for (connection,) in stream.rows(
            "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
        ):
            with contextlib.suppress(pymysql.err.MySQLError):  # one that has ended already, or is the server's own
                stream.rows(f"KILL {connection}")  # as a restart does
    engine.dispose()


def test_an_async_session_sends_by_its_own_driver(stream: Stream) -> None:
    app = stream.app()

    @app.task
    def bill(n: int) -> None: ...

    async def main() -> None:
        engine = create_async_engine(stream.url.replace("mysql://", "mysql+aiomysql://"))
        async with AsyncSession(engine) as session:
            for number in range(4):
                await session.execute(_INSERT, {"n": number})
                receipt = await app.asend("orders", number, transaction=session)
                assert receipt.offset is None, "it is not committed yet"
                if number % 2:
                    await session.rollback()
                else:
                    await app.pool.run(lambda: _mover_rests(app))
                    await session.commit()
            await session.execute(_INSERT, {"n": 5})
            await app.asend_many("orders", [5], transaction=session)
            await bill.using(transaction=session).adelay(6)
            await session.execute(_INSERT, {"n": 6})
            await session.commit()
        async with engine.begin() as connection:
            await connection.execute(_INSERT, {"n": 7})
            await app.asend("orders", 7, transaction=connection)
        await engine.dispose()
        await app.aclose()

    asyncio.run(main())
    bodies = [
        body if body.isdigit() else b"6" for (body,) in stream.rows(f"{_BODIES} UNION ALL SELECT body FROM ems_outbox")
    ]
    assert (
        Counter(map(int, bodies))
        == Counter([0, 2, 5, 6, 7])
        == Counter(n for (n,) in stream.rows("SELECT n FROM orders"))
    )
