"""Handlers that do what no handler should: swallow errors, change their session, take too long. And what operators handle.

Each one's effect is a row in ``orders``. EMS_TEST_VERSION=2 is another version of the app: it does not know one of the
groups, nor one of the tasks, and has another ladder.
"""

import contextlib
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pymysql

from emsworker import Ems, Message
from emsworker.chaos import Recorder
from emsworker.publish.transaction import Transaction
from verification.chaos.names import IDLE, OPERATED, REBORN, SESSION, SLOW, SLOW_TIMEOUT_S, SWALLOW, VERSIONED

_FOLDER = Path(os.environ["EMS_TEST_RECORD"])
_OLD = os.environ.get("EMS_TEST_VERSION", "1") == "1"
app = Ems("rough", middleware=[Recorder(_FOLDER / "history", sync=False)])


class _Meeting:
    """Two threads at a time pass together; unlike a ``threading.Barrier`` it outlives a thread that waited in vain."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._arrived = 0

    def wait(self, timeout_s: float) -> None:
        with self._changed:
            pair = self._arrived // 2
            self._arrived += 1
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._arrived // 2 > pair, timeout_s):
                self._arrived -= 1


_met = _Meeting()  # before their second updates, which are in opposite orders
_tried: set[str] = set()
_CHANGES = (
    ("SET time_zone = '-08:00'",),
    ("SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'",),
    ("SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",),
    ("SET SESSION TRANSACTION READ ONLY",),
    ("SET sql_select_limit = 1", "SET sql_safe_updates = 1", "SET innodb_lock_wait_timeout = 1"),
    ("SET NAMES latin1",),
    ("SET completion_type = 'CHAIN'",),
    ("USE information_schema",),
    ("SET @ems_may = 0, @ems_lo = 7, @ems_hi = 9, @ems_one = 3",),
)


def _order(transaction: Transaction, group: str, message: Message) -> None:
    transaction.execute("INSERT INTO orders (grp, uid) VALUES (%s, %s)", (group, message.id))


def _is_first(message: Message) -> bool:
    """True once for each message in this process."""
    if message.id in _tried:
        return False
    _tried.add(message.id)
    return True


@app.subscribe(SWALLOW, SWALLOW, transactional=True)
def swallow(transaction: Transaction, message: Message) -> None:
    """Order, meet others in a deadlock, catch its error, and go on as if nothing had happened."""
    n = message.body["n"]
    _order(transaction, SWALLOW, message)
    update = "UPDATE account SET amount = amount + 1 WHERE id = %s"
    try:
        transaction.execute(update, (1 + n % 2,))
        _met.wait(0.2)
        transaction.execute(update, (2 - n % 2,))
    except pymysql.MySQLError as error:
        (_FOLDER / f"swallowed-{error.args[0]}").touch()
    if n % 3 == 0:
        with contextlib.suppress(pymysql.MySQLError):
            transaction.execute("SELECT COUNT(*) FROM orders").fetchall()


@app.subscribe(SESSION, SESSION, transactional=True, ladder="200ms", max_attempts=20)
def session(transaction: Transaction, message: Message) -> None:
    """Order, change the session in one or more ways, and end well or not."""
    chance = random.Random(f"{message.id} {message.attempt}")
    _order(transaction, SESSION, message)
    for statements in chance.sample(_CHANGES, chance.randint(1, 3)):
        for statement in statements:
            transaction.execute(statement)
    if chance.random() < 0.3:
        connection: Any = transaction.cursor().connection
        connection.select_db("information_schema")
    if message.attempt == 1 and chance.random() < 0.3:
        raise ValueError("it's a \\ failure with 'quotes'")


@app.subscribe(SESSION, "beside", ladder="200ms", max_attempts=20)
def beside(message: Message) -> None:
    """Run on the same threads, and fail now and then: retries go by the clock of the session."""
    if message.attempt == 1 and message.body["n"] % 4 == 0:
        raise ValueError("not yet")


@app.subscribe(SLOW, "late", ladder="200ms", max_attempts=20)
def late(message: Message) -> None:
    """Sleep past the group's timeout, the first time."""
    if message.body["late"] and message.attempt == 1:
        time.sleep(2 * SLOW_TIMEOUT_S)


@app.subscribe(SLOW, SLOW, transactional=True, ladder="200ms", max_attempts=20)
def slow(transaction: Transaction, message: Message) -> None:
    """Order, and sleep past the group's timeout: who wakes up then can commit nothing."""
    _order(transaction, SLOW, message)
    if message.body["late"] and message.attempt == 1:
        time.sleep(2 * SLOW_TIMEOUT_S)


@app.subscribe(IDLE, IDLE, transactional=True, ladder="200ms", max_attempts=20)
def idle(transaction: Transaction, message: Message) -> None:
    """Order, and be silent for longer than the server keeps the connection, the first time."""
    _order(transaction, IDLE, message)
    if message.body["late"] and _is_first(message):
        transaction.execute("SET wait_timeout = 1")
        time.sleep(1.5)


# -- for operators -----------------------------------------------------------------------------------------------------


def _operated(message: Message) -> None:
    time.sleep(message.body["work_s"])
    if message.body.get("dies") and not (_FOLDER / "healed").exists():
        raise RuntimeError("not before it is requeued")


@app.subscribe(OPERATED, "o-plain", on_error="dead")
def operated_plain(message: Message) -> None:
    _operated(message)


@app.subscribe(OPERATED, "o-keyed", order="key", on_error="dead")
def operated_keyed(message: Message) -> None:
    _operated(message)


@app.subscribe(OPERATED, "o-bystander", order="partition")
def operated_bystander(message: Message) -> None:
    time.sleep(message.body["work_s"])


@app.subscribe(OPERATED, "o-cash", transactional=True, on_error="dead")
def operated_cash(transaction: Transaction, message: Message) -> None:
    _order(transaction, "o-cash", message)
    _operated(message)


if (_FOLDER / "added").exists():

    @app.subscribe(OPERATED, "o-added")
    def operated_added(message: Message) -> None:
        time.sleep(message.body["work_s"])


@app.subscribe(REBORN, "r-cash", transactional=True)
def reborn(transaction: Transaction, message: Message) -> None:
    _order(transaction, "r-cash", message)


@app.task(name="versioned.both", topic=VERSIONED, group="v-tasks", ladder="100ms" if _OLD else "400ms", max_attempts=20)
def both(n: int, fails: bool) -> None:
    if fails and _fails_first(f"both-{n}"):
        raise ValueError("not yet")


def _fails_first(name: str) -> bool:
    """True once for each name in all processes."""
    try:
        (_FOLDER / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


if _OLD:

    @app.task(name="versioned.old", topic=VERSIONED, group="v-tasks", ladder="100ms", max_attempts=20)
    def old(n: int) -> None:
        """Known to one version only: the other one fails it, by the group's ladder, until this one comes by."""

    @app.subscribe(VERSIONED, "v-old", transactional=True)
    def old_group(transaction: Transaction, message: Message) -> None:
        _order(transaction, "v-old", message)
