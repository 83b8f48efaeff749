"""Tasks of one group, of which some have limits of their own."""

import asyncio
import time

from emsworker import Ems
from tests.process.record import note

app = Ems("task_limits")


@app.task(name="rated", topic="mixed", rate_limit="20/s")
def rated(n: int) -> None:
    note("rated", n=n)


@app.task(name="slow", topic="mixed", max_running=2)
def slow(n: int) -> None:
    note("start", n=n)
    time.sleep(0.05)
    note("end", n=n)


@app.task(name="together", topic="mixed", max_running=3)
async def together(n: int) -> None:
    note("astart", n=n)
    await asyncio.sleep(0.05)
    note("aend", n=n)


@app.task(name="free", topic="mixed")
def free(n: int) -> None:
    note("free", n=n)
