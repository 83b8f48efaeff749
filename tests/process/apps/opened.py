"""An app whose processes open, slowly, what its handler needs."""

import threading
import time

from emsworker import Ems, Message, Middleware
from tests.process.record import note

_opened = threading.Event()


class Opens(Middleware):
    """Opens it."""

    def on_process_start(self) -> None:
        time.sleep(1)  # a consumer that ran meanwhile would have handled what waits
        _opened.set()


app = Ems("opened", middleware=[Opens()])


@app.subscribe("opened", "a")
def handle(message: Message) -> None:
    note("end", n=message.body["n"], opened=_opened.is_set())
