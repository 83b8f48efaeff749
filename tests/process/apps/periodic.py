"""Tasks that are called at set times."""

from typing import Any

from emsworker import Ems
from tests.process.record import note

app = Ems("periodic")


@app.periodic(every=1.0, catch_up="all", args=[7], key="k")
@app.task(name="tick", bind=True)
def tick(self: Any, n: int) -> None:
    note("tick", n=n, slot=self.request.headers["ems-slot"], key=self.request.key)


@app.periodic("0 3 * * *", timezone="Europe/Berlin", name="nightly")
@app.task(name="clean")
def clean() -> None:
    note("clean")
