"""Slow work of ten priorities."""

import time

from emsworker import Ems, Message
from tests.process.record import note

app = Ems("priority")


@app.subscribe("levels", "g")
def work(message: Message) -> None:
    note("start", n=message.body["n"], priority=message.priority)
    time.sleep(message.body["s"])
    note("end", n=message.body["n"], priority=message.priority)
