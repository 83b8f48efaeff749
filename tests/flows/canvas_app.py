"""The tasks of the canvases of these tests: Celery's own, in words of ours."""

import os
from typing import Any

from emsworker import Ems, Transaction
from emsworker.core.model import PRIORITY_HEADER
from emsworker.flows import Flow
from tests.process.record import note

app = Ems("canvas")

heard: list[Any] = []
"""What was said by tasks that ran in this process."""


def _say(what: Any) -> None:
    if "EMS_TEST_RECORD" in os.environ:
        note("said", what=what)
    heard.append(what)


@app.task
def add(x: Any, y: Any, z: int = 0) -> Any:
    return x + y + z if z else x + y


@app.task
def total(numbers: list[Any]) -> Any:
    return sum(numbers)


@app.task
def add_to_all(numbers: list[Any], value: Any) -> list[Any]:
    return [number + value for number in numbers]


@app.task
def same(value: Any) -> Any:
    return value


@app.task
def echo(text: Any) -> Any:
    _say(text)
    return text


@app.task(max_attempts=1)
def fail(*ignored: Any) -> None:
    raise ValueError("meant to fail")


@app.task(max_attempts=2, ladder="10ms", bind=True)
def fail_once(self: Any, value: Any) -> Any:
    if self.request.attempt == 1:
        raise ValueError("once")
    return value


@app.task
def heard_error(request: dict[str, str], error: dict[str, str], text: str) -> None:
    _say([request["task"], error, text])


@app.task
def heard_id(id: str) -> None:
    _say(id)


@app.task(max_attempts=2, ladder="10ms", bind=True)
def heard_at_last(self: Any, id: str) -> None:
    if self.request.attempt == 1:
        raise ValueError("not yet")
    _say("at last")


@app.task(bind=True)
def priority(self: Any, before: Any = None) -> str | None:
    return self.request.headers.get(PRIORITY_HEADER)


@app.task(bind=True)
def own_id(self: Any, *ignored: Any) -> str:
    return self.request.id


@app.task
async def later(x: int) -> int:
    return x * 10


@app.task(transactional=True)
def book(transaction: Transaction, n: int) -> int:
    transaction.execute("INSERT INTO effect (n, pid) VALUES (%s, %s)", (n, os.getpid()))
    return n


@app.task(batch=10)
def together(messages: list[Any]) -> None: ...


@app.task(topic="other", group="others")
def elsewhere(x: int) -> int:
    return x + 1000


@app.flow
def doubled(flow: Flow, x: int) -> int:
    return flow.call(add.s(x, x))


@app.flow
def canvas_inside(flow: Flow, x: int) -> Any:
    both = flow.call(add.s(x, 1) | add.s(2))
    return [both, flow.gather([total.s([1, 2]), add.s(1, 1) | add.s(5), doubled.s(4)])]


@app.flow(max_attempts=1)
def undone(flow: Flow) -> None:
    flow.undo(echo.si("first") | echo.si("second"))
    raise RuntimeError("out of luck")
