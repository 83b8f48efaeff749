"""Handlers that do to their session what no handler should, and do not mind what comes of it."""

import contextlib
import itertools
import threading
from typing import Any

import pymysql

from emsworker import Ems, Message
from emsworker.publish.transaction import Transaction
from tests.process.record import note

app = Ems("misbehaving")
_INSERT = "INSERT INTO effect (n, pid) VALUES (%s, 0)"
# Two at a time, so that their two updates meet in opposite orders.
_met = threading.Barrier(2)
_turn = itertools.count()


def _collide(transaction: Transaction) -> None:
    """Update two rows, in the order that the last call did not take, between which the other has updated its first."""
    first, second = (1, 2) if next(_turn) % 2 else (2, 1)
    update = "UPDATE account SET amount = amount + 1 WHERE id = %s"
    transaction.execute(update, (first,))
    try:
        _met.wait(1)
    except threading.BrokenBarrierError:
        _met.reset()  # nobody came, or in the same order: the next two shall meet
    transaction.execute(update, (second,))


@app.subscribe("swallow", "swallow", transactional=True)
def swallow(transaction: Transaction, message: Message) -> None:
    """Catch the error of a deadlock and go on, with more SQL or without."""
    n = message.body["n"]
    note("try", n=n)
    transaction.execute(_INSERT, (n,))
    caught = False
    try:
        _collide(transaction)
    except pymysql.MySQLError as error:
        caught = True
        note("caught", n=n, code=error.args[0])
    if message.body["more"]:
        with contextlib.suppress(pymysql.MySQLError):
            transaction.execute("INSERT INTO cash (uid) VALUES (%s)", (n,))
    if caught and message.body.get("raises"):
        raise ValueError("an error of its own because of that")


@app.subscribe("hidden", "hidden", transactional=True)
def hidden(transaction: Transaction, message: Message) -> None:
    """The same in a stored procedure that hides the error from its caller, and goes on."""
    n = message.body["n"]
    note("try", n=n)
    first, second = (1, 2) if n % 2 else (2, 1)
    transaction.execute("CALL swallow_deadlock(%s, %s, %s)", (n, first, second))


def _select_db(transaction: Transaction, name: str) -> None:
    transaction.cursor().connection.select_db(name)


def _own_names(transaction: Transaction) -> None:
    connection: Any = transaction.cursor().connection
    connection.set_character_set("latin1")
    connection.decoders.clear()
    connection.encoders.clear()


@app.subscribe("session", "session", transactional=True, ladder="300ms", max_attempts=3)
def session(transaction: Transaction, message: Message) -> None:
    """Have an effect, change the session, and end well or, at the first attempt, not."""
    body = message.body
    transaction.execute(_INSERT, (body["n"],))
    if body.get("set"):
        for statement in body["set"]:
            with contextlib.suppress(pymysql.err.OperationalError if body.get("may_fail") else ()):
                transaction.execute(statement)
    if body.get("select_db"):
        _select_db(transaction, body["select_db"])
    if body.get("own_names"):
        _own_names(transaction)
    note("end", n=body["n"], attempt=message.attempt)
    if body.get("fails") and message.attempt == 1:
        raise ValueError("it's a \\ failure with 'quotes' and \\' both — and more")


@app.subscribe("end", "end", transactional=True, max_attempts=2, ladder="100ms")
def end(transaction: Transaction, message: Message) -> None:
    """End the transaction in some way, and go on with more SQL."""
    connection: Any = transaction.cursor().connection
    transaction.execute(_INSERT, (message.body["n"],))
    deed = message.body["do"]
    if deed == "autocommit":
        connection.autocommit(True)
    elif deed == "reconnect":
        connection._force_close()
        connection.ping(reconnect=True)
    else:
        transaction.execute(deed)
    transaction.execute("INSERT INTO cash (uid) VALUES (%s)", (message.body["n"],))


@app.subscribe("plain", "plain", transactional=True)
def plain(transaction: Transaction, message: Message) -> None:
    """What a neighbour sees of the session, after the others have had it."""
    transaction.execute(_INSERT, (message.body["n"],))
    cursor = transaction.execute("SELECT DATABASE(), @@time_zone, @@sql_mode, @@sql_select_limit, @@sql_safe_updates")
    note("seen", n=message.body["n"], session=[str(value) for value in cursor.fetchone() or ()])
