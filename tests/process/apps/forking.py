"""An app whose handlers fork: for a child that sends, for one that is told to end, and without an end of its own."""

import multiprocessing
import os
import sys
import threading
import time
from typing import Any

from emsworker import Ems
from tests.process.record import note

app = Ems("forking", timeout_s=30, max_attempts=2, ladder="100ms", jitter=0.0)
_processes: Any = multiprocessing.get_context("fork")


def _join(child: Any, seconds: float) -> None:
    """Wait for a child. A start in another thread may collect its exit code at the same time; then it comes later."""
    until = time.monotonic() + seconds
    while child.exitcode is None and time.monotonic() < until:
        child.join(0.2)


def _send(n: int) -> None:
    app.send("sent", {"n": n})
    app.send("sent", {"n": n}, countdown=0.01)
    with app.transaction() as tx:
        tx.send("sent", {"n": n})


@app.task(name="fork", topic="forks", group="a")
def fork(n: int) -> None:
    """While the other threads of the worker send, too."""
    app.send("busy", {"n": n}, countdown=0.001)
    child = _processes.Process(target=_send, args=(n,))
    child.start()
    _join(child, 20)
    note("end", n=n, code=child.exitcode)


@app.task(name="terminate", topic="forks", group="a")
def terminate(n: int) -> None:
    child = _processes.Process(target=time.sleep, args=(60,))
    child.start()
    child.terminate()
    _join(child, 10)
    note("end", n=n, code=child.exitcode)


@app.task(name="return", topic="forks", group="a")
def come_back(n: int, how: str) -> None:
    """The child comes back from the handler, as nobody should."""
    pid = os.fork()
    if pid == 0:
        if how == "exit":
            sys.exit(0)
        if how == "raise":
            raise RuntimeError("in the child")
        return
    _, status = os.waitpid(pid, 0)
    note("end", n=n, code=os.waitstatus_to_exitcode(status), threads=threading.active_count())


@app.subscribe("tx", group="a", transactional=True)
def fork_in_a_transaction(transaction: Any, message: Any) -> None:
    transaction.execute("INSERT INTO effect (n, pid) VALUES (%s, 0)", (message.body["n"],))
    child = _processes.Process(target=_send, args=(message.body["n"],))
    child.start()
    _join(child, 20)
    note("end", n=message.body["n"], code=child.exitcode)
