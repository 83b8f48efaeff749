"""Handlers that hang or hold, and an app that cannot be imported while a file is there."""

import os
import time
from pathlib import Path

from emsworker import Ems
from tests.process.record import note

FOLDER = Path(os.environ.get("EMS_TEST_RECORD", "."))
if (FOLDER / "broken").exists():
    raise RuntimeError("this app is broken")

app = Ems("probed")


@app.task(name="fine")
def fine(n: int) -> None:
    note("ended", n=n)


@app.task(name="hold", topic="holds")
def hold() -> None:
    note("holds")
    while not (FOLDER / "let-go").exists():
        time.sleep(0.02)


@app.task(name="hang", topic="hangs", timeout_s=0.3, max_attempts=1)
def hang() -> None:
    time.sleep(600)
