"""Tasks that are counted."""

from emsworker import Ems, Middleware
from emsworker.core.model import Message
from emsworker.observe.metrics import Metrics
from tests.process.record import note


class Broken(Middleware):
    """Its errors change nothing."""

    def on_dead(self, message: Message, group: str, error: BaseException, reason: str) -> None:
        note("dead", reason=reason, error=repr(error))
        raise RuntimeError("a hook that fails")


app = Ems("metered", middleware=[Broken(), Metrics()])


@app.task(name="fine")
def fine() -> None:
    """Nothing to do."""


@app.task(name="fails", max_attempts=2, ladder="50ms")
def fails() -> None:
    raise ValueError("no")


@app.task(name="passes")
def passes() -> None:
    fine.delay()


@app.task(name="says", max_attempts=2, ladder="10ms", result=True)
def says(text: str) -> None:
    raise ValueError(text)
