"""An app whose processes never get ready."""

import threading

from emsworker import Ems, Message, Middleware


class Stuck(Middleware):
    """Waits for something that does not come."""

    def on_process_start(self) -> None:
        threading.Event().wait()


app = Ems("stuck", middleware=[Stuck()])


@app.subscribe("nothing", "a")
def handle(message: Message) -> None: ...
