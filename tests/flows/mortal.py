"""The app of the tests of crashes: flows whose processes die at every step, are frozen, cut off, and changed."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from emsworker import Ems, Transaction
from emsworker.flows import CallFailed, Flow
from tests.process.record import note

app = Ems("mortal")
VERSIONS = os.environ.get("EMS_TEST_VERSIONS", "1,2").split(",")


def _once(place: str) -> bool:
    """Return whether this is the first process that comes to a place."""
    try:
        (Path(os.environ["EMS_TEST_RECORD"]) / f"been-{place}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def die(place: str) -> None:
    """Kill this process, the first time that one comes here."""
    if _once(place):
        note("dies", place=place)
        os.kill(os.getpid(), signal.SIGKILL)


def _effect(transaction: Transaction, n: int) -> int:
    transaction.execute("INSERT INTO effect (n, pid) VALUES (%s, %s)", (n, os.getpid()))
    return n


def _count(n: int) -> int:
    note("step", n=n)
    return n


def _step(n: int) -> int:
    die(f"step-{n}")
    return _count(n)


def _dying_effect(transaction: Transaction, n: int) -> int:
    _effect(transaction, n)
    die(f"transaction-{n}")
    return n


@app.task(transactional=True, max_attempts=5, ladder="50ms")
def book(transaction: Transaction, n: int, place: str = "") -> int:
    _effect(transaction, n)
    if place:
        die(f"{place}-{n}")
    return n


@app.task(max_attempts=5, ladder="50ms")
def undo(n: int) -> None:
    die(f"undo-{n}")
    note("undo", n=n)


@app.flow(max_attempts=12, ladder="50ms")
def mortal(flow: Flow, n: int) -> Any:
    """Its processes die at each step, and between them."""
    die(f"begin-{n}")
    flow.step(_step, n)
    die(f"between-{n}")
    flow.transaction(_dying_effect, n)
    flow.emit(n)
    flow.undo(undo.s(n))
    flow.undo(undo.s(n + 1))
    flow.call(book.s(n + 1, "call"))
    die(f"called-{n}")
    many = flow.gather(book.s(n + place, "gather") for place in range(2, 5))
    flow.sleep(0.1)
    die(f"slept-{n}")
    flow.wait_for("go")
    die(f"signalled-{n}")
    flow.step(_count, n + 1)
    raise ArithmeticError(many)


def _linger(n: int) -> int:
    note("lingers", n=n)
    if _once(f"lingers-{n}"):
        until = time.monotonic() + 60
        while not (Path(os.environ["EMS_TEST_RECORD"]) / f"go-{n}").exists() and time.monotonic() < until:
            time.sleep(0.02)
    return n


@app.flow(max_attempts=5, ladder="50ms")
def frozen(flow: Flow, n: int) -> int:
    """Its first process is frozen in the first step."""
    try:
        flow.step(_linger, n)
    except Exception:
        note("swallowed", n=n)
    flow.transaction(_effect, n)
    flow.step(_count, n)
    return n


@app.flow(max_attempts=5, ladder="50ms")
def plain(flow: Flow, n: int) -> Any:
    """Nothing of it dies by itself."""
    flow.step(_count, n)
    try:
        flow.transaction(_effect, n)
    except Exception:
        note("swallowed", n=n)
        raise
    flow.emit(n)
    flow.call(book.s(n + 1))
    flow.gather(book.s(n + place) for place in range(2, 5))
    flow.sleep(0.05)
    return flow.step(_count, n + 1)


@app.flow(max_attempts=1)
def crashes(flow: Flow) -> None:
    os._exit(1)


@app.flow(max_attempts=1)
def calls_a_crash(flow: Flow) -> str:
    try:
        flow.call(crashes.s())
    except CallFailed as error:
        return error.error_type
    return "nothing"


def _mendable(n: int) -> int:
    if not (Path(os.environ["EMS_TEST_RECORD"]) / "mended").exists():
        raise RuntimeError("not mended yet")
    return n


@app.flow(max_attempts=1)
def mendable(flow: Flow, n: int) -> int:
    flow.step(_count, n)
    flow.transaction(_effect, n)
    return flow.step(_mendable, n)


@app.task(transactional=True, max_attempts=1)
def mendable_call(transaction: Transaction, n: int) -> int:
    return _effect(transaction, n if n % 2 else _mendable(n))


@app.flow(max_attempts=1)
def mendable_child(flow: Flow, n: int) -> list[int]:
    flow.transaction(_effect, n)
    return flow.gather(mendable_call.s(n + place) for place in range(1, 4))


@app.flow(max_attempts=1)
def mendable_calls(flow: Flow, n: int) -> list[int]:
    first, second = flow.gather([mendable_child.s(n), mendable_call.s(n + 5)])
    return [*first, second]


def _version(version: int, n: int) -> int:
    note("version", version=version, n=n)
    return version


if "1" in VERSIONS:

    @app.flow(name="rolling", version=1)
    def rolling_1(flow: Flow, n: int) -> int:
        flow.step(_version, 1, n)
        flow.wait_for("go")
        return flow.step(_version, 1, n)


if "2" in VERSIONS:

    @app.flow(name="rolling", version=2)
    def rolling_2(flow: Flow, n: int) -> int:
        flow.step(_version, 2, n)
        flow.transaction(_effect, n)
        flow.wait_for("go")
        return flow.step(_version, 2, n)
