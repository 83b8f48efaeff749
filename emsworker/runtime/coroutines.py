"""Coroutines of a process: one event loop in a thread of its own, on which the consumers have theirs run.

A consumer hands over a run of neighbours of its claim and waits; they run at once, and as soon as the first of them has
ended it is taken note of, so that the watermark follows the lowest one that still runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from emsworker.core.model import Message


class EventLoop:
    """The loop; its thread is started at its first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine to its end; called by other threads than the loop's own."""
        asyncio.run_coroutine_threadsafe(coroutine, self._running()).result()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="ems-coroutines", daemon=True).start()
            return self._loop


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
