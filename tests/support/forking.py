"""A process that forks while its threads send: ``python -m tests.support.forking URL REDIS FORKS FILE WARM``.

It forks after so many sends (``WARM``); at 0, while the first are on their way.

Its children send as well, or only end; each ends by itself, through all that a process does at its end. What was
confirmed is printed as JSON: message ids, how the children ended, and errors.
"""

import asyncio
import faulthandler
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from emsworker import Ems
from tests.support.servers import connect

CHILD_S = 40.0
TOPICS = 100
BURST = 4


def topic(number: int) -> str:
    """Another one each time, so that its name is looked up, again and again."""
    return f"t{number % TOPICS}"


def ways(app: Ems) -> dict[str, Callable[[int], str]]:
    """How a message can be sent, by name; each sends one and returns its id."""

    def in_transaction(number: int) -> str:
        with app.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES (%s, %s)", (os.getpid(), number))
            return tx.send(topic(number), number).id

    kept: dict[int, Any] = {}

    def on_a_connection(number: int) -> str:
        """The caller's own, one for each process; without TLS, whose locks are the caller's to mind."""
        connection = kept.get(os.getpid()) or kept.setdefault(
            os.getpid(), connect(app.stream.url, autocommit=False, ssl_disabled=True)
        )
        receipt = app.send(topic(number), number, transaction=connection)
        connection.commit()
        return receipt.id

    return {
        "direct": lambda number: app.send(topic(number), number).id,
        "delayed": lambda number: app.send(topic(number), number, countdown=0.05).id,
        "dedup": lambda number: app.send(topic(number), number, dedup_key=f"{os.getpid()}-{number}").id,
        "transaction": in_transaction,
        "connection": on_a_connection,
        "coroutine": lambda number: asyncio.run(app.asend(topic(number), number)).id,
    }


class Senders:
    """A thread for each way to send."""

    def __init__(self, app: Ems) -> None:
        self.sent: list[str] = []
        self.errors: list[str] = []
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(send,)) for send in ways(app).values()]
        for thread in self._threads:
            thread.start()

    def _send(self, send: Callable[[int], str]) -> None:
        number = random.randrange(TOPICS)
        try:
            while not self._stopped.is_set():
                self.sent.append(send(number))
                number += 1
        except BaseException as error:
            self.errors.append(repr(error))

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(30)


def be_a_child(app: Ems, number: int, out: str) -> None:
    """Send in every way, or (every third) do nothing; then end as programs do."""
    faulthandler.dump_traceback_later(CHILD_S / 2)
    signal.alarm(int(2 * CHILD_S))  # one that hangs ends also if its parent was killed
    if number % 3:
        ids = [send(number) for send in ways(app).values()]
        with Path(out).open("a") as file:
            file.write("".join(f"{one}\n" for one in ids))
    sys.exit(0)


def wait_for(pid: int) -> str:
    deadline = time.monotonic() + CHILD_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return "0" if status == 0 else f"status {status}"
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return "hung"


def main(url: str, redis_url: str, forks: int, out: str, warm: int) -> None:
    settings: dict[str, Any] = {"redis_url": redis_url, "allocator": "redis"} if redis_url else {}
    app = Ems("forking", url=url, **settings)
    senders = Senders(app)
    ended = []
    while len(senders.sent) < warm and not senders.errors:
        time.sleep(0.005)
    for first in range(0, forks, BURST):
        before = len(senders.sent)
        children = []
        for number in range(first, min(first + BURST, forks)):
            pid = os.fork()
            if pid == 0:
                be_a_child(app, number, out)
            children.append(pid)
        ended += [wait_for(pid) for pid in children]
        deadline = time.monotonic() + 20
        while warm and len(senders.sent) < before + BURST and not senders.errors and time.monotonic() < deadline:
            time.sleep(0.001)
    senders.stop()
    app.close()
    print(json.dumps({"sent": senders.sent, "ended": ended, "errors": senders.errors}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
