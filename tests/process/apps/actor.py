"""An app whose messages say what their handlers are to do; several topics, each with other options."""

import contextlib
import ctypes
import os
import resource
import threading
import time
from collections.abc import Sequence
from typing import Any

from emsworker import (
    BatchFailed,
    Ems,
    Filter,
    Ignore,
    Message,
    Middleware,
    Reject,
    Retry,
    SoftTimeLimitExceeded,
)
from emsworker.publish.transaction import Transaction
from tests.process.record import note


class Hooks(Middleware):
    """Notes every call of a hook."""

    def before_run(self, message: Message, group: str) -> None:
        if message.topic in ("steer", "hooks"):
            note("before_run", offset=message.offset, group=group)

    def after_run(self, message: Message, group: str, outcome: Any, error: BaseException | None, ran_s: float) -> None:
        if message.topic in ("steer", "hooks"):
            note("after_run", offset=message.offset, group=group, outcome=str(outcome), error=repr(error))
        if message.tag == "hold":
            time.sleep(0.4)  # several acked offsets
            note("held")
            time.sleep(60)
        if message.topic == "hooks":
            raise RuntimeError("a hook that fails after the run")

    def on_process_start(self) -> None:
        note("process_start")

    def on_process_stop(self) -> None:
        note("process_stop")


app = Ems("actor", middleware=[Hooks()])


class Odd(BaseException):
    """No Exception."""


def _hog() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))
    hoard = []
    while True:
        hoard.append(bytearray(64 << 20))


def _loop() -> None:
    while True:
        pass


def _fail(body: dict[str, Any]) -> None:
    raise RuntimeError(body.get("text", "asked to fail"))


def _raise(error: BaseException) -> None:
    raise error


_DEEDS: dict[str, Any] = {
    "sleep": lambda body: time.sleep(body["s"]),
    "exit": lambda body: os._exit(body.get("code", 1)),
    "segfault": lambda body: ctypes.string_at(0),
    "hog": lambda body: _hog(),
    "loop": lambda body: _loop(),
    "hang": lambda body: threading.Event().wait(),
    "fail": _fail,
    "odd": lambda body: _raise(Odd("odd")),
    "system_exit": lambda body: _raise(SystemExit(3)),
    "interrupt": lambda body: _raise(KeyboardInterrupt()),
    "reject": lambda body: _raise(Reject("not wanted")),
    "ignore": lambda body: _raise(Ignore("never mind")),
    "retry": lambda body: _raise(Retry("later", countdown=body["countdown"])),
    "os_error": lambda body: _raise(ConnectionRefusedError("a service of its own is away")),
}


def act(message: Message, group: str) -> None:
    """Do what the message says, and note the start and the end."""
    body = message.body
    where = {"n": body["n"], "offset": message.offset, "group": group, "attempt": message.attempt}
    where["thread"] = threading.get_native_id()
    note("start", **where)
    deed = body.get("do")
    if deed is not None and message.attempt >= body.get("from", 1) and message.attempt <= body.get("until", 999):
        _DEEDS[deed](body)
    note("end", **where)


@app.subscribe("acts", "a")
def a(message: Message) -> None:
    act(message, "a")


@app.subscribe("acts", "b")
def b(message: Message) -> None:
    act(message, "b")


@app.subscribe("acts", "c")
def c(message: Message) -> None:
    act(message, "c")


@app.subscribe("steer", "steered")
def steered(message: Message) -> None:
    act(message, "steered")


@app.subscribe("to_dead", "to_dead", on_error="dead")
def to_dead(message: Message) -> None:
    act(message, "to_dead")


@app.subscribe("to_ignore", "to_ignore", on_error="ignore")
def to_ignore(message: Message) -> None:
    act(message, "to_ignore")


@app.subscribe("wanted", "wanted", filter=Filter(tags=["yes"], headers={"region": "eu"}))
def wanted(message: Message) -> None:
    act(message, "wanted")


@app.subscribe("batches", "batches", batch=10)
def batches(messages: Sequence[Message]) -> None:
    note("batch", size=len(messages))
    failed: dict[str, BaseException | str] = {}
    for message in messages:
        if message.body.get("do") == "name":
            failed[message.id] = ValueError("named by the handler")
        else:
            act(message, "batches")
    if failed:
        raise BatchFailed(failed)


@app.subscribe("soft", "soft", soft_time_limit_s=0.3, max_attempts=1)
def soft(message: Message) -> None:
    try:
        deadline = time.monotonic() + message.body.get("s", 0)
        while time.monotonic() < deadline:
            time.sleep(0.01)
    except SoftTimeLimitExceeded:
        note("soft", n=message.body["n"])
        raise
    note("end", n=message.body["n"])


@app.subscribe("hard", "hard", hard_time_limit_s=0.5)
def hard(message: Message) -> None:
    act(message, "hard")


# -- transactional -----------------------------------------------------------------------------------------------------


def insert(transaction: Transaction, message: Message) -> None:
    """The effect: one row for each run that is committed."""
    transaction.execute("INSERT INTO effect (n, pid) VALUES (%s, %s)", (message.body["n"], os.getpid()))


_lost: set[int] = set()


def _lose_connection(transaction: Transaction) -> None:
    """Before its first statement, as somebody who takes an error of the database as no reason to fail."""
    with app.transaction() as other:
        other.execute("KILL %s", (transaction.cursor().connection.thread_id(),))
    with contextlib.suppress(Exception):
        transaction.execute("SELECT 1")


@app.subscribe("tx", "tx", transactional=True)
def tx(transaction: Transaction, message: Message) -> None:
    if message.body.get("do") == "lose" and message.offset not in _lost:
        _lost.add(message.offset)
        _lose_connection(transaction)
        return
    insert(transaction, message)
    if message.body.get("do") == "commit":
        transaction.execute("COMMIT")
    elif message.body.get("do") != "lose":
        act(message, "tx")


@app.subscribe("tx_batch", "tx_batch", transactional=True, batch=20)
def tx_batch(transaction: Transaction, messages: Sequence[Message]) -> None:
    for message in messages:
        insert(transaction, message)
        act(message, "tx_batch")


@app.subscribe("tx_soft", "tx_soft", transactional=True, soft_time_limit_s=0.02, ladder="50ms", max_attempts=200)
def tx_soft(transaction: Transaction, message: Message) -> None:
    insert(transaction, message)
    with contextlib.suppress(ValueError):
        transaction.execute("SELECT SLEEP(%s)", (message.body["s"],))


@app.subscribe("hooks", "hooks", transactional=True)
def hooked(transaction: Transaction, message: Message) -> None:
    insert(transaction, message)


@app.subscribe("collide", "collide", transactional=True)
def collide(transaction: Transaction, message: Message) -> None:
    note("try", n=message.body["n"])
    for row in message.body["rows"]:
        transaction.execute("UPDATE account SET amount = amount + 1 WHERE id = %s", (row,))
        time.sleep(0.005)


# -- tasks -------------------------------------------------------------------------------------------------------------


@app.task(name="add", topic="tasks", group="workers")
def add(x: int, y: int) -> None:
    note("end", n=x + y)


@app.task(name="bound", topic="tasks", group="workers", bind=True)
def bound(self: Any, n: int) -> None:
    request = self.request
    note("request", n=n, id=request.id, task=request.task, attempt=request.attempt, topic=request.topic,
         offset=request.offset, group=request.group, key=request.key or "")  # fmt: skip
    if request.attempt < 3:
        self.retry("not yet", countdown=0.2)
    note("end", n=n)
