"""Tasks that keep their results."""

import os
from typing import Any

from emsworker import Ems, Message, Reject
from emsworker.publish.transaction import Transaction

app = Ems("results")


class Odd(Exception):
    """An error of the app's own."""


@app.task(name="add", result=True)
def add(x: int, y: int) -> int:
    return x + y


@app.task(name="quiet")
def quiet() -> int:
    return 1


@app.task(name="fail", result=True, max_attempts=2, ladder="50ms")
def fail(text: str) -> None:
    raise Odd(text)


@app.task(name="doomed", on_error="dead")
def doomed() -> None:
    raise Odd("no hope")


@app.task(name="reject", result_ttl_s=1.5)
def reject() -> None:
    raise Reject("not wanted")


@app.task(name="short", result_ttl_s=0.5)
def short() -> str:
    return "soon gone"


@app.task(name="big", result=True)
def big(size: int) -> str:
    return "x" * size


@app.task(name="strange", result=True)
def strange() -> object:
    return object()


@app.task(name="crash", result=True, max_attempts=1)
def crash() -> None:
    os._exit(9)


@app.task(name="pay", result=True, transactional=True, max_attempts=3, ladder="50ms", bind=True)
def pay(self: Any, transaction: Transaction, n: int) -> int:
    transaction.execute("INSERT INTO effect (n, pid) VALUES (%s, %s)", (n, os.getpid()))
    if self.request.attempt < 2:
        raise Odd("rolled back")
    return n


@app.subscribe("bulk", "bulk", result=True)
def bulk(message: Message) -> int:
    return int(message.body)
