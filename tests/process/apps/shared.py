"""An app whose two tasks have one topic and a group each; one of the groups runs in order by key."""

from emsworker import Ems
from tests.process.record import note

app = Ems("shared")


@app.task(topic="mixed", group="mail")
def mail(n: int) -> None:
    note("end", n=n, group="mail")


@app.task(topic="mixed", group="bills", order="key")
def bill(n: int) -> None:
    note("end", n=n, group="bills")
