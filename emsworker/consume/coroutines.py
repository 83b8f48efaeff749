"""Coroutines of a process: one event loop in a thread of its own, shared by the consumers.

A consumer hands over consecutive messages of its claim and waits; they run at once. As soon as the first of them has
ended it is recorded, so that the acked offset follows the lowest message that still runs.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from emsworker.core.errors import EmsError
from emsworker.core.model import Message
from emsworker.core.process import forks
from emsworker.core.process.runnable import Runnable
from emsworker.tasks.options import HandlerOptions

T = TypeVar("T")
OnDeath = Callable[[str, BaseException], None]

_SLACK_S = 5.0


class _LoopThread(Runnable):
    """Runs an event loop, which does not end by itself: a handler that stops it, or SystemExit, ends the thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_death: OnDeath) -> None:
        super().__init__("ems-coroutines", on_death)
        self._loop = loop

    def step(self) -> None:
        """Run the loop; if it ended unnoticed, every thread with a coroutine on it would wait for ever."""
        self._loop.run_forever()
        raise EmsError("a handler has stopped the event loop that all coroutines of its process share")


class EventLoop:
    """The event loop; its thread is started at the first use.

    Args:
        on_death: see :class:`Runnable`.
    """

    def __init__(self, on_death: OnDeath = lambda name, error: None) -> None:
        self._on_death = on_death
        self._lock = forks.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; called by threads other than the loop's own."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._running()).result()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                _LoopThread(self._loop, self._on_death).start()
            return self._loop


def guarded(options: HandlerOptions, group_timeout_s: float) -> tuple[float, HandlerOptions]:
    """Return the time limit of a coroutine, and the limits of its thread, which only apply if the loop is blocked."""
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
        run: runs one message; it raises only what must end the process.
        ended: called with messages in order, each once it and all before it have ended, and the first that still runs.
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

    async with asyncio.TaskGroup() as group:  # if our own bookkeeping fails, no coroutine goes on unattended
        for number in range(len(messages)):
            group.create_task(one(number))
