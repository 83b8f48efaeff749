"""An app whose group is fair by tenant, and tasks that require what a machine has."""

import time

from emsworker import Ems
from tests.process.record import note

app = Ems("fair", topic="work")


@app.task(name="serve", group="fair", fair="tenant", retry_for=(OSError,), max_attempts=5)
def serve(n: int, tenant: str, seconds: float = 0.002, fail: bool = False) -> None:
    note("start", n=n, tenant=tenant)
    time.sleep(seconds)
    if fail:
        raise OSError("not now")
    note("end", n=n, tenant=tenant)


@app.task(name="limited", topic="limited", group="limited", fair="tenant", max_running_per_key=2)
def limited(n: int, tenant: str, seconds: float = 0.05) -> None:
    note("start", n=n, tenant=tenant)
    time.sleep(seconds)
    note("end", n=n, tenant=tenant)


@app.task(name="plain")
def plain(n: int) -> None:
    note("end", n=n)


@app.task(name="render", requires="gpu")
def render(n: int) -> None:
    note("end", n=n)


@app.task(name="train", requires=("gpu", "eu"))
def train(n: int) -> None:
    note("end", n=n)
