"""An app whose handlers freeze their process, once: nothing else of Python runs in it meanwhile."""

import ctypes
import os
import re
from pathlib import Path
from typing import Any

from emsworker import Ems, Message
from tests.process.record import note

app = Ems("frozen")


def _first(name: str) -> bool:
    """Whether nobody has come here before."""
    try:
        os.close(os.open(Path(os.environ["EMS_TEST_RECORD"]) / name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _hold(seconds: float) -> None:
    """Hold the interpreter's lock for exactly that long: a function of a PyDLL is called without giving it up."""
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


def _match() -> None:
    """Backtrack for longer than anybody will live."""
    re.match(r"(a+)+$", "a" * 60 + "b")


@app.subscribe("holds", "holds", timeout_s=30)
def hold(message: Message) -> None:
    body: dict[str, Any] = message.body
    note("start", n=body["n"])
    if "s" in body and _first("held"):
        _hold(body["s"])
    note("end", n=body["n"])


@app.subscribe("matches", "matches", hard_time_limit_s=1)
def match(message: Message) -> None:
    note("start", n=message.body["n"])
    if message.body.get("always") or (message.body.get("hard") and _first("matched")):
        _match()
    note("end", n=message.body["n"])
