"""An app whose groups have limits."""

import asyncio
import time
from collections.abc import Sequence

from emsworker import Ems, Message
from tests.process.record import note

app = Ems("limited")


@app.subscribe("rates", "a", rate_limit="100/s")
def rated(message: Message) -> None:
    note("start", n=message.body["n"])
    time.sleep(message.body.get("s", 0))
    note("end", n=message.body["n"])


@app.subscribe("slots", "a", max_running=3)
def slotted(message: Message) -> None:
    note("start", n=message.body["n"])
    time.sleep(message.body["s"])
    note("end", n=message.body["n"])


@app.subscribe("aslots", "a", max_running=5, concurrency=4)
async def slotted_coroutine(message: Message) -> None:
    note("astart", n=message.body["n"])
    await asyncio.sleep(message.body["s"])
    note("aend", n=message.body["n"])


@app.subscribe("bslots", "a", max_running=4, batch=10)
def slotted_batch(messages: Sequence[Message]) -> None:
    note("batch", n=len(messages))


@app.subscribe("free", "a")
def free(message: Message) -> None:
    note("end", n=message.body["n"])
