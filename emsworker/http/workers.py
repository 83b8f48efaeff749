"""Threads for calls that block: few, so that no number of clients takes all connections of the database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from emsworker.http.faults import HttpFault

T = TypeVar("T")


class CallThreads:
    """Threads that run calls in turn; more calls than may wait are refused.

    Args:
        name: of the threads.
        threads: the number of them, and so of connections to each database.
        most: the calls that may run or wait at once.
    """

    def __init__(self, name: str, threads: int, most: int) -> None:
        self._pool = ThreadPoolExecutor(threads, name)
        self._most, self._begun = most, 0

    async def run(self, call: Callable[[], T]) -> T:
        """Run a call; if the coroutine is cancelled, the call goes on to its end.

        Raises:
            HttpFault: too many wait.
        """
        if self._begun >= self._most:
            raise HttpFault(503, "busy", f"{self._most} requests are being answered; ask again later")
        self._begun += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, call)
        future.add_done_callback(self._count_end)
        return await asyncio.shield(future)

    def _count_end(self, future: asyncio.Future[T]) -> None:
        self._begun -= 1
        if not future.cancelled():
            future.exception()  # nobody may be there any more to retrieve it

    def close(self) -> None:
        """End the threads when their calls have ended."""
        self._pool.shutdown(wait=False)
