"""An app whose handlers take their process, or their connection, along. Each notes every run of a message."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emsworker import Ems, Message
from emsworker.publish.transaction import Transaction
from tests.process.record import note
from tests.support.waiting import until

app = Ems("lost")
OWN = {"max_attempts": 3, "ladder": "200ms"}


def _do(body: dict[str, Any], attempt: int) -> None:
    note("start", n=body["n"], attempt=attempt)
    if body.get("do") == "exit":
        os._exit(0)
    elif body.get("do") == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif body.get("do") == "fail then kill":
        if attempt == 1:
            raise RuntimeError("asked to fail")
        os.kill(os.getpid(), signal.SIGKILL)
    elif body.get("do") == "sleep":
        time.sleep(body["s"])
    note("end", n=body["n"])


def _task(self: Any, body: dict[str, Any]) -> int:
    _do(body, self.request.attempt)
    return int(body["n"])


for _name, _options in {
    "own": OWN,
    "dead": {"on_error": "dead"},
    "ignored": {"on_error": "ignore"},
    "patient": {"result": True},
}.items():
    app.task(name=_name, topic="calls", group="calls", bind=True, **_options)(_task)  # type: ignore[arg-type]


@app.subscribe("keyed", "keyed", order="key", **OWN)
def keyed(message: Message) -> None:
    _do(message.body, message.attempt)


@app.subscribe("batched", "batched", batch=10, **OWN)
def batched(messages: Sequence[Message]) -> None:
    for message in messages:
        _do(message.body, message.attempt)


# -- transactional -----------------------------------------------------------------------------------------------------


def _cut(transaction: Transaction) -> None:
    with app.transaction() as other:
        other.execute("KILL %s", (transaction.cursor().connection.thread_id(),))


def _wait_for_the_test(n: int) -> None:
    """Until it says that this run, counted from 1, may go on."""
    folder = Path(os.environ["EMS_TEST_RECORD"])
    with (folder / f"runs-{n}").open("a") as runs:
        runs.write("x")
        runs.flush()
        go = folder / f"go-{n}-{runs.tell()}"
    until(go.exists, 90, str(go))


@app.subscribe("cuts", "cuts", transactional=True, **OWN)
def cuts(transaction: Transaction, message: Message) -> None:
    body = message.body
    insert = "INSERT INTO effect (n, pid) VALUES (%s, 0)"
    transaction.execute(insert, (body["n"],))
    note("start", n=body["n"], attempt=message.attempt)
    if body.get("do") == "cut":
        _cut(transaction)
        transaction.execute(insert, (body["n"],))
    elif body.get("do") == "cut and return":
        _cut(transaction)
    elif body.get("do") == "refuse":
        transaction.execute("SET @refused = 1")
    elif body.get("do") == "sleep":
        time.sleep(body["s"])
    elif body.get("do") == "wait":
        _wait_for_the_test(body["n"])
    note("end", n=body["n"])
