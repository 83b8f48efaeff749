"""The app of the workers beside a reader: handlers that wait, as most do, and leave the cores to others."""

from __future__ import annotations

import time

from emsworker import Ems, Message

app = Ems("waits")
WAIT_S = 0.002


@app.subscribe("bench", "waits")
def wait(message: Message) -> None:
    """As a call of another service would."""
    time.sleep(WAIT_S)
