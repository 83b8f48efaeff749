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
from emsworker.store import engine
from tests.support.streams import Stream

FILES = tuple(str(Path(next(iter(one.__path__)))) for one in (engine, pymysql))
MOST_PLACES = 10_000
STEP = 1 if os.environ.get("EMS_TEST_LONG") else 5


class Timeout(Exception):
    """What a timeout library raises."""


class Cut:
    """Raises before or after a call into C; Python looks for exceptions from outside after each, and at other places."""

    def __init__(self, at: int) -> None:
        self.left, self.raised = at, False

    def __enter__(self) -> "Cut":
        sys.setprofile(self.see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def see(self, frame: FrameType, event: str, arg: Any) -> None:
        if self.raised or event not in ("c_call", "c_return") or not frame.f_code.co_filename.startswith(FILES):
            return
        self.left -= 1
        if self.left < 0:
            self.raised = True
            raise Timeout


def cuts(work: Callable[[int], None]) -> Iterator[tuple[int, bool]]:
    """Run the work with an interruption at each of its places; yield the place's number, and whether it was finished."""
    for number in range(0, MOST_PLACES, STEP):
        finished = False
        try:
            with Cut(number) as cut:
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
    every = stream.rows("SELECT body FROM ems_message UNION ALL SELECT body FROM ems_outbox")
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
        with Cut(number) as cut:
            try:
                work(number)
            except Exception as error:  # the block's own error where its connection was lost
                assert isinstance(error, Timeout) or "lost" in str(error) or "left" in str(error), error
        assert disturbed(app) == [], number
        if not cut.raised:
            break
    assert wrong == []
