"""Coroutines of a process: one event loop in a thread of its own, on which the consumers have theirs run.

A consumer hands over a run of neighbours of its claim and waits; they run at once, and as soon as the first of them has
ended it is taken note of, so that the watermark follows the lowest one that still runs.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from emsworker.core.model import Message
from emsworker.declaring.options import HandlerOptions

T = TypeVar("T")

_SLACK_S = 5.0


class EventLoop:
    """The loop; its thread is started at its first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; called by other threads than the loop's own."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._running()).result()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="ems-coroutines", daemon=True).start()
            return self._loop


def guarded(options: HandlerOptions, group_timeout_s: float) -> tuple[float, HandlerOptions]:
    """How long a coroutine may run, and the limits of its thread: they are only for a loop that somebody blocks."""
    limit_s = min(options.timeout_s or group_timeout_s, options.hard_time_limit_s or math.inf)
    slack_s = min(max(limit_s, 1.0), _SLACK_S)
    return limit_s, replace(options, timeout_s=limit_s + slack_s, hard_time_limit_s=None, soft_time_limit_s=None)


async def run_together(
    messages: list[Message],
    run: Callable[[Message], Awaitable[None]],
    ended: Callable[[list[Message], Message | None], None],
) -> None:
    """Run all messages at once.

    Args:
        run: runs one; it raises nothing but what must end the process.
        ended: told of messages in their order, each once it and all before it have ended; and of the first that runs.
    """
    finished: set[int] = set()
    first = 0

    async def one(number: int) -> None:
        nonlocal first
        await run(messages[number])
        finished.add(number)
        begin = first
        while first in finished:
            finished.remove(first)
            first += 1
        if first > begin:
            ended(messages[begin:first], messages[first] if first < len(messages) else None)

    async with asyncio.TaskGroup() as group:  # should our own bookkeeping fail, none goes on unattended
        for number in range(len(messages)):
            group.create_task(one(number))
