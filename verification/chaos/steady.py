"""Steady work: each message waits a little, so that the processor is not what is measured."""

import time

from emsworker import Ems, Message

app = Ems("steady")


@app.subscribe("steady", "workers")
def work(message: Message) -> None:
    time.sleep(0.001)
