"""The app of the tests of operating: flows that wait, fail until something is mended, and undo."""

import os
from pathlib import Path
from typing import Any

from emsworker import Ems, Transaction
from emsworker.flows import Flow
from tests.process.record import note

app = Ems("depot")
MENDED = "EMS_TEST_RECORD"


def mend() -> None:
    """Let what failed succeed from now on."""
    _sign().touch()


def _sign() -> Path:
    return Path(os.environ[MENDED] + "-mended")


def weigh(n: int) -> int:
    note("weigh", n=n)
    return n * 10


@app.task(max_attempts=1)
def pack(n: int) -> str:
    if not _sign().exists():
        raise ConnectionError("the packer is down")
    return f"P{n}"


@app.task(max_attempts=1)
def unpack(n: int) -> None:
    note("unpack", n=n)


def close(transaction: Transaction, n: int) -> None:
    transaction.execute("INSERT INTO effect (n, pid) VALUES (%s, %s)", (n, os.getpid()))


@app.flow(max_attempts=1)
def ship(flow: Flow, n: int) -> dict[str, Any]:
    weight = flow.step(weigh, n)
    packed = flow.call(pack.s(n))
    flow.transaction(close, n)
    return {"weight": weight, "packed": packed}


@app.flow(max_attempts=1)
def undoing(flow: Flow, n: int) -> str:
    flow.undo(unpack.s(n))
    flow.step(weigh, n)
    return flow.call(pack.s(n))


@app.flow(max_attempts=1)
def shelf(flow: Flow, n: int) -> Any:
    flow.emit({"n": n})
    flow.emit("waiting")
    return flow.wait_for("picked")


@app.flow(max_attempts=1)
def outer(flow: Flow, n: int) -> Any:
    return flow.call(ship.s(n))
