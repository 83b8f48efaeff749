"""Threads on which coroutines run calls that block."""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from emsworker.core.process import forks

T = TypeVar("T")

log = logging.getLogger(__name__)


class ThreadPool:
    """Runs blocking calls for the coroutines of any number of event loops.

    Threads are started as they are needed. Calls beyond their number wait in order, and their coroutines with them. A
    forked child has threads of its own: what its parent's threads run or have queued stays with the parent. At the end
    of the program Python waits for the calls that have begun.

    Args:
        threads: the maximum number of threads; 0: none, for calls that never block: they run in the coroutine itself.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._lock = forks.Lock()
        self._executor: ThreadPoolExecutor | None = None
        forks.after_fork(self._leave_to_parent)

    @property
    def is_empty(self) -> bool:
        """True if there are no threads: calls run in the coroutine itself."""
        return not self._threads

    async def run(self, call: Callable[[], T], name: str = "") -> T:
        """Return what a call returns, without blocking the event loop; the call sees the coroutine's ``contextvars``.

        If the coroutine is cancelled, a call that still waits for a thread is dropped: it has no effect. One that has
        begun runs to its end.

        Args:
            name: of the call; if it fails after its coroutine was cancelled, a warning names it. Without a name such a
                failure is ignored.
        """
        if not self._threads:
            return call()
        from asyncio import CancelledError, wrap_future  # only a program with coroutines has loaded it

        future = self._submit(call)
        try:
            return await wrap_future(future)
        except CancelledError:
            if name:
                future.add_done_callback(lambda ended: _report(name, ended))
            raise

    def start(self, call: Callable[[], object]) -> None:
        """Have a thread run a call, whose end nobody waits for; one that fails must tell itself."""
        if self._threads:
            self._submit(call)
        else:
            call()

    def _submit(self, call: Callable[[], T]) -> Future[T]:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._threads, "ems-async")
            return self._executor.submit(contextvars.copy_context().run, call)

    def close(self) -> None:
        """Wait for the calls that have begun, drop those that have not, and end the threads; new calls start new ones.

        It blocks, so it is not for an event loop, and it must not be called by a thread of the pool.
        """
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=True, cancel_futures=True)

    def _leave_to_parent(self) -> None:
        self._executor = None


def _report(name: str, ended: Future[T]) -> None:
    if not ended.cancelled() and (error := ended.exception()) is not None:
        log.warning("%s failed after its coroutine was cancelled: %s", name, error)
