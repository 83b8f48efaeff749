"""The app that is measured: what a user would write, with nothing in it that knows of a benchmark."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from emsworker import Ems
from emsworker.tasks.task import Task


@dataclass(frozen=True)
class Tasks:
    """An app and its tasks, each on a topic of its own."""

    app: Ems
    noop: Task
    answer: Task
    flaky: Task
    insert_row: Task
    stamp: Task
    nap: Task
    blob: Task
    serve: Task


def build(**settings: Any) -> Tasks:
    """Declare the tasks on a new app.

    Args:
        settings: of the app, over the environment's.
    """
    app = Ems("bench", **settings)

    @app.task(name="noop", topic="noop")
    def noop(number: int) -> None:
        pass

    @app.task(name="answer", topic="answers", result=True)
    def answer(number: int) -> int:
        return number

    @app.task(name="flaky", topic="flaky", bind=True, ladder="1ms")
    def flaky(self: Any, number: int) -> None:
        _fail_at_first(self.request.attempt)

    @app.task(name="insert_row", topic="rows", transactional=True)
    def insert_row(transaction: Any, number: int) -> None:
        transaction.execute("INSERT INTO bench_effect (number) VALUES (%s)", (number,))

    @app.task(name="stamp", topic="latency")
    def stamp(number: int, sent_ns: int) -> None:
        entered_ns = time.time_ns()
        # One write a line, so that the lines of several processes never mix.
        os.write(_stamps(), f"{number} {entered_ns - sent_ns}\n".encode())

    @app.task(name="nap", topic="naps")
    def nap(seconds: float) -> None:
        time.sleep(seconds)

    @app.task(name="blob", topic="blobs")
    def blob(text: str) -> None:
        pass

    @app.task(name="serve", topic="tenants", fair="tenant")
    def serve(tenant: str, seconds: float, number: int | None = None, sent_ns: int = 0) -> None:
        if number is not None:
            os.write(_stamps(), f"{number} {time.time_ns() - sent_ns}\n".encode())
        time.sleep(seconds)

    return Tasks(app, noop, answer, flaky, insert_row, stamp, nap, blob, serve)


def _fail_at_first(attempt: int) -> None:
    if attempt == 1:
        raise ConnectionError("the service is away")


_descriptors: list[int] = []


def _stamps() -> int:
    if not _descriptors:
        _descriptors.append(os.open(os.environ["BENCH_STAMPS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    return _descriptors[0]


app = build().app
