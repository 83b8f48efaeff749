"""Handlers that listen: one without a name, one that resumes by its name, and a coroutine."""

import asyncio
import os
import time

from emsworker import Ems, Message
from tests.process.record import note

app = Ems("broadcast")


def _act(message: Message) -> None:
    what = message.body.get("do")
    if what == "raise":
        raise ValueError("told to")
    if what == "exit":
        note("exit", n=message.body["n"])
        os._exit(9)
    if what == "hang":
        note("hang", n=message.body["n"])
        time.sleep(60)
    if what == "slow":
        time.sleep(0.02)


@app.subscribe("news", broadcast=True)
def hear(message: Message) -> None:
    _act(message)
    note("heard", n=message.body["n"], partition=message.partition, offset=message.offset)


@app.subscribe("named", broadcast=True, name="cache", timeout_s=0.7)
def resume(message: Message) -> None:
    _act(message)
    note("resumed", n=message.body["n"], offset=message.offset)


@app.subscribe("news", broadcast=True)
async def wait(message: Message) -> None:
    await asyncio.sleep(0)
    note("awaited", n=message.body["n"], partition=message.partition)
