"""An exception from outside, as timeout libraries raise them, at every place of an exchange with the server.

It is an ordinary ``Exception``, raised at one place after the other, so that nothing is left to chance.
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pymysql
import pytest

from emsworker import Ems
from emsworker.core.errors import ConnectionLost
from emsworker.store import engine
from emsworker.store.engine.connection import Loan
from tests.support.interruptions import Cut, Timeout
from tests.support.streams import Stream

pytestmark = pytest.mark.own_process

FILES = tuple(str(Path(next(iter(one.__path__)))) for one in (engine, pymysql))
MOST_PLACES = 10_000
STEP = 1 if os.environ.get("EMS_TEST_LONG") else 5
EVENTS = ("c_call", "c_return")


def cuts(work: Callable[[int], None]) -> Iterator[tuple[int, bool]]:
    """Run the work with an interruption at each of its places; yield the place's number, and whether it was finished."""
    for number in range(0, MOST_PLACES, STEP):
        finished = False
        try:
            with Cut(number, FILES, EVENTS) as cut:
                work(number)
                finished = True
        except Timeout:
            pass
        yield number, finished
        if not cut.raised:
            return
    raise AssertionError(f"it takes more than {MOST_PLACES} places")


@pytest.fixture
def app(stream: Stream) -> Ems:
    stream.rows("CREATE TABLE IF NOT EXISTS interrupted (n INT PRIMARY KEY)")
    stream.rows("DELETE FROM interrupted")
    return stream.app()


def disturbed(app: Ems) -> list[str]:
    """What blocks and queries that nobody disturbs do wrong."""
    wrong = []
    try:
        with app.transaction() as transaction:
            transaction.execute("INSERT INTO interrupted VALUES (-1)")
            raise LookupError
    except LookupError:
        pass
    with app.transaction() as transaction:
        for n in (7, 8):
            if (found := transaction.execute("SELECT %s", (n,)).fetchall()) != ((n,),):
                wrong.append(f"SELECT {n} returned {found}")
    return wrong


def test_transactions_commit_whole_or_not_at_all(app: Ems, stream: Stream) -> None:
    def work(n: int) -> None:
        with app.transaction() as transaction:
            transaction.execute("INSERT INTO interrupted VALUES (%s)", (n,))
            transaction.execute("SELECT 'foreign'")
            app.send("t", n, transaction=transaction)

    app.send("t", "first")
    finished = set()
    for number, done in cuts(work):
        assert disturbed(app) == [], number
        with app.transaction() as transaction:
            app.send("t", "moves what others have left", transaction=transaction)
        finished |= {number} if done else set()
    rows = {n for (n,) in stream.rows("SELECT n FROM interrupted")}
    every = stream.rows("SELECT body FROM ems_message WHERE `offset` > 0 UNION ALL SELECT body FROM ems_outbox")
    sent = {int(body) for (body,) in every if body.isdigit()}
    assert rows == sent, "a row and its message are one"
    assert finished <= rows and -1 not in rows
    assert len(finished) >= 1


def test_an_interrupted_send_is_there_once_or_not_at_all(app: Ems, stream: Stream) -> None:
    app.send("t", "first")
    finished = set()
    for number, done in cuts(lambda n: app.send("t", n) and None):
        assert disturbed(app) == [], number
        assert app.send("t", f"after {number}").offset
        finished |= {number} if done else set()
    bodies = [bytes(body).decode() for (body,) in stream.rows("SELECT body FROM ems_message WHERE kind = 'message'")]
    sent = [int(body) for body in bodies if body.isdigit()]
    assert len(sent) == len(set(sent)) and finished <= set(sent)
    assert sum("after" in body for body in bodies) == max(finished) // STEP + 1


def test_what_a_handler_catches_ends_its_connection(app: Ems, stream: Stream) -> None:
    """A handler that catches the exception goes on; its next statement must not get the answer of the last one."""
    wrong: list[Any] = []

    def work(n: int) -> None:
        with app.transaction() as transaction:
            try:
                transaction.execute("SELECT 'foreign'").fetchall()
            except Timeout:
                cut = True
            else:
                cut = False
            try:
                found = transaction.execute("SELECT %s", (n,)).fetchall()
            except pymysql.MySQLError:
                return
            if found != ((n,),):
                wrong.append((n, cut, found))

    for number in range(0, MOST_PLACES, STEP):
        with Cut(number, FILES, EVENTS) as cut:
            try:
                work(number)
            except Exception as error:  # the block's own error where its connection was lost
                assert isinstance(error, Timeout) or "lost" in str(error) or "left" in str(error), error
        assert disturbed(app) == [], number
        if not cut.raised:
            break
    assert wrong == []


def test_a_packet_in_parts_leaves_no_transaction_for_the_next_statement(app: Ems, stream: Stream) -> None:
    """In a Galera cluster each statement is sent by itself; so is what is too large for one packet."""
    insert = "INSERT INTO interrupted VALUES (%(n)s)"
    session = stream.new_session()

    def work(n: int) -> None:
        session._opened().one_by_one = True
        packet = session.packet()
        packet.begin()
        for number in (n, 100_000 + n):
            packet.add(insert, {"n": number})  # type: ignore[arg-type]
        packet.commit()
        packet.send()

    finished, alone = set(), set()
    for number, done in cuts(work):
        finished |= {number} if done else set()
        for _ in range(2):  # the first finds that the connection was cut
            try:
                session.execute(insert, {"n": 200_000 + number})  # type: ignore[arg-type]
            except ConnectionLost:
                continue
            break
        alone.add(200_000 + number)
    session.close()
    rows = {n for (n,) in stream.rows("SELECT n FROM interrupted")}
    assert alone <= rows, "each statement by itself was committed"
    assert {n - 100_000 for n in rows if 100_000 <= n < 200_000} == {n for n in rows if n < 100_000}
    assert finished <= rows


@pytest.mark.parametrize("method", ["__init__", "end"])
def test_a_loan_that_is_cut_leaves_nothing_of_the_handlers(stream: Stream, method: str) -> None:
    """Its decoders, for instance: our own statements read times as the server writes them."""
    session = stream.new_session()
    code = getattr(Loan, method).__code__

    def lend() -> None:
        with session.lend() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT 1")

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code is not code:
            return None
        left -= 1
        if left == 0:
            raise Timeout
        return trace

    for place in range(1, 100):
        left = place
        sys.settrace(trace)
        try:
            lend()
        except Timeout:
            pass
        finally:
            sys.settrace(None)
        session.rollback()
        ((at,),) = session.rows("SELECT NOW(6)")  # type: ignore[arg-type]
        assert isinstance(at, str), place
        connection = session._opened()
        assert not connection.lent and connection.loan is None and "_read_packet" not in vars(connection), place
        if left > 0:
            break
    else:
        raise AssertionError("it has more places than that")
    assert place > 5
    session.close()
