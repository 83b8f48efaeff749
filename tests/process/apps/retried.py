"""Handlers of every kind that fail at first, and then run for as long as their message says."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from emsworker import BatchFailed, Ems, Message
from emsworker.publish.transaction import Transaction

app = Ems("retried")


def _begin(message: Message) -> float:
    if message.attempt == 1:
        raise RuntimeError("the first time")
    return float(message.body["s"])


@app.subscribe("plain", "plain")
def plain(message: Message) -> None:
    time.sleep(_begin(message))


@app.subscribe("batch", "batch", batch=10)
def batch(messages: Sequence[Message]) -> None:
    if failed := {message.id: "the first time" for message in messages if message.attempt == 1}:
        raise BatchFailed(failed)
    time.sleep(sum(map(_begin, messages)))


@app.subscribe("transactional", "transactional", transactional=True)
def transactional(transaction: Transaction, message: Message) -> None:
    transaction.execute("SELECT SLEEP(%s)", (_begin(message),))


@app.subscribe("coroutine", "coroutine")
async def coroutine(message: Message) -> Any:
    await asyncio.sleep(_begin(message))


@app.subscribe("by_key", "by_key", order="key")
def by_key(message: Message) -> None:
    time.sleep(_begin(message))
