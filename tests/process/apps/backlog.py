"""Handlers that take a moment, and each process's count of what it has run."""

import itertools
import time

from emsworker import Ems, Message, Middleware
from tests.process.record import note

WORK_S = 0.0004
_ran = itertools.count()


class Counts(Middleware):
    """Notes at its end how many messages a process has run."""

    def on_process_stop(self) -> None:
        note("ran", n=next(_ran))


app = Ems("backlog", middleware=[Counts()])


@app.subscribe("backlog", "workers")
def work(message: Message) -> None:
    time.sleep(WORK_S)
    next(_ran)
