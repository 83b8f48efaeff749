"""Runs, through which handlers ask for more time and report progress: one kind for threads, one for coroutines."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable
from typing import Any

from emsworker.consume.watch import Watch
from emsworker.consume.work import Work
from emsworker.core.errors import RunEnded, SoftTimeLimitExceeded, TimeLimitExceeded
from emsworker.core.model import Message
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.run import ProgressReport, Run, check_span
from emsworker.tasks.options import HandlerOptions

_SLACK_S = 5.0  # if a handler blocks the event loop, the thread that waits is ended this much later


class ThreadRun(Run):
    """The run of a message that has a thread for itself, or shares it with its batch.

    Args:
        work: the claim that is worked on.
        watch: of the thread.
        message: of the claim.
        since: when it began, in :func:`ticks`.
    """

    __slots__ = ("_message", "_since", "_watch", "_work")

    def __init__(self, work: Work, watch: Watch, message: Message, since: float) -> None:
        self._work, self._watch, self._message, self._since = work, watch, message, since

    @property
    def time_left(self) -> float:
        """Seconds until the first limit; see :class:`Run`."""
        return self._watch.time_left(self._since)

    def extend(self, seconds: float) -> None:
        """Ask for more time; see :class:`Run`."""
        check_span(seconds)
        self._watch.extend(self._since, seconds)

    def report_progress(self, fraction: float | None = None, text: str = "") -> None:
        """Report progress; see :class:`Run`."""
        self._work.progress_buffer.tell(
            ProgressReport.checked(self._message.uid, self._message.attempt, fraction, text)
        )


class CoroutineRun(Run):
    """The run of a coroutine, with limits of its own, which are timers of the event loop.

    Args:
        work: the claim that is worked on.
        watch: of the thread that waits for it.
        message: of the claim.
        options: of its handler.
        hard_s: seconds that it may run.
    """

    def __init__(self, work: Work, watch: Watch, message: Message, options: HandlerOptions, hard_s: float) -> None:
        self._work, self._watch, self._message = work, watch, message
        soft_s = options.soft_time_limit_s
        self._began = ticks()
        self._soft_end = self._began + (math.inf if soft_s is None else soft_s)
        self._hard_end = self._began + hard_s
        self._lock = forks.Lock()  # the coroutine may pass the run to a thread
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = False
        self._soft = asyncio.timeout(None)
        self._hard = asyncio.timeout(None)

    async def within_limits(self, call: Awaitable[Any]) -> Any:
        """Await the handler, and cancel it when it exceeds a limit.

        Raises:
            SoftTimeLimitExceeded, TimeLimitExceeded: it did not end in time. The coroutine itself gets CancelledError.
        """
        self._loop, self._thread_id = asyncio.get_running_loop(), threading.get_ident()
        try:
            async with self._hard, self._soft:  # a coroutine that survives the first is cancelled by the second
                self._set_timers()
                return await call
        except TimeoutError:
            if not (self._hard.expired() or self._soft.expired()):
                raise  # the handler's own
        finally:
            self._over = True
        if self._hard.expired():
            raise TimeLimitExceeded(f"its limit is {self._hard_end - self._began:.3g} s")
        raise SoftTimeLimitExceeded(f"its soft limit is {self._soft_end - self._began:.3g} s")

    def _set_timers(self) -> None:
        if self._over or self._loop is None:
            return
        for timer, end in ((self._soft, self._soft_end), (self._hard, self._hard_end)):
            if not timer.expired():
                timer.reschedule(None if math.isinf(end) else self._loop.time() + end - ticks())

    @property
    def _has_ended(self) -> bool:
        return self._over or self._work.lost or self._hard.expired()

    @property
    def _first_end(self) -> float:
        return self._hard_end if self._soft.expired() else min(self._soft_end, self._hard_end)

    @property
    def time_left(self) -> float:
        """Seconds until the first limit; see :class:`Run`."""
        return 0.0 if self._has_ended else max(0.0, self._first_end - ticks())

    def extend(self, seconds: float) -> None:
        """Ask for more time; see :class:`Run`."""
        check_span(seconds)
        with self._lock:
            if self._has_ended:
                raise RunEnded(f"the time of {self._message!r} was over; it will be run again")
            more_s = max(0.0, ticks() + seconds - self._first_end)
            self._soft_end, self._hard_end = self._soft_end + more_s, self._hard_end + more_s
            self._watch.extend_until(self._hard_end + _SLACK_S)
        if self._loop is None or threading.get_ident() == self._thread_id:
            self._set_timers()
        else:
            self._loop.call_soon_threadsafe(self._set_timers)

    def report_progress(self, fraction: float | None = None, text: str = "") -> None:
        """Report progress; see :class:`Run`."""
        self._work.progress_buffer.tell(
            ProgressReport.checked(self._message.uid, self._message.attempt, fraction, text)
        )
