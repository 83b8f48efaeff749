"""An app of coroutines."""

import asyncio
import contextlib
import os
import time
from contextvars import ContextVar

from emsworker import Ems, Message, Middleware, Reject
from tests.process.record import note

_current: ContextVar[int] = ContextVar("current")


class Context(Middleware):
    """Sets a variable that each message must find as its own."""

    def before_run(self, message: Message, group: str) -> None:
        _current.set(message.offset)


app = Ems("coroutines", middleware=[Context()], ladder="100ms", max_attempts=2, jitter=0.0)


@app.subscribe("sleeps", "a", concurrency=250)
async def sleep(message: Message) -> None:
    await asyncio.sleep(message.body["s"])
    assert _current.get() == message.offset
    note("end", n=message.body["n"])


@app.task(name="act", topic="acts", group="a", bind=True, soft_time_limit_s=0.5, hard_time_limit_s=1.0, result=True)
async def act(self, n: int, do: str = "") -> int:  # type: ignore[no-untyped-def]
    note("begin", n=n, attempt=self.request.attempt)
    if do == "fail":
        raise ValueError("no")
    if do == "reject":
        raise Reject("never")
    if do == "long":
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            note("cancelled", n=n)
            raise
    if do == "die" and self.request.attempt == 1:
        os._exit(1)
    if do == "stubborn":
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(30)
        await asyncio.sleep(30)
    await asyncio.sleep(0.01)
    note("end", n=n)
    return n * 2


@app.subscribe("blocks", "a", hard_time_limit_s=0.3)
async def block(message: Message) -> None:
    if message.body["n"] == 1:
        time.sleep(60)
    note("end", n=message.body["n"])
