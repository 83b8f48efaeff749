"""What handlers are given to ask for more time and to tell their progress: one kind for threads, one for coroutines."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable
from typing import Any

from emsworker.core.clock import ticks
from emsworker.core.errors import RunEnded, SoftTimeLimitExceeded, TimeLimitExceeded
from emsworker.core.model import Message
from emsworker.core.run import Report, Run, check_span
from emsworker.runtime.work import Work


class ThreadRun(Run):
    """The run of a message that has a thread for itself, or shares it with its batch.

    Args:
        work: the claim that is worked on.
        message: of the claim.
        since: when it began, in :func:`ticks`.
    """

    __slots__ = ("_message", "_since", "_work")

    def __init__(self, work: Work, message: Message, since: float) -> None:
        self._work, self._message, self._since = work, message, since

    @property
    def time_left(self) -> float:
        """See :class:`Run`."""
        return self._work.time_left(self._since)

    def extend(self, seconds: float) -> None:
        """See :class:`Run`."""
        check_span(seconds)
        self._work.extend(self._since, seconds)

    def report_progress(self, fraction: float | None = None, text: str = "") -> None:
        """See :class:`Run`."""
        self._work.report(Report.checked(self._message.uid, self._message.attempt, fraction, text))


class CoroutineRun(Run):
    """The run of a coroutine, with limits of its own, which are timers of the event loop.

    Args:
        work: the claim that is worked on.
        message: of the claim.
        soft_s, hard_s: its limits.
        slack_s: how much later the whole claim is ended, should somebody block the loop.
    """

    __slots__ = (
        "_hard",
        "_hard_end",
        "_lock",
        "_loop",
        "_message",
        "_over",
        "_slack_s",
        "_soft",
        "_soft_end",
        "_thread_id",
        "_work",
    )

    def __init__(self, work: Work, message: Message, soft_s: float | None, hard_s: float, slack_s: float) -> None:
        self._work, self._message, self._slack_s = work, message, slack_s
        now = ticks()
        self._soft_end = now + (math.inf if soft_s is None else soft_s)
        self._hard_end = now + hard_s
        self._lock = threading.Lock()  # the coroutine may hand us to a thread
        self._thread_id = threading.get_ident()
        self._over = False
        self._loop = asyncio.get_running_loop()
        self._soft: asyncio.Timeout = asyncio.timeout(None)
        self._hard: asyncio.Timeout = asyncio.timeout(None)

    async def within_limits(self, call: Awaitable[Any]) -> Any:
        """Await the handler; past a limit it is cancelled.

        Raises:
            SoftTimeLimitExceeded, TimeLimitExceeded: it did not end in time. In the coroutine it is CancelledError.
        """
        began = ticks()
        try:
            async with self._hard, self._soft:  # one that goes on after the first is cancelled again by the second
                self._set_timers()
                return await call
        except TimeoutError:
            if not (self._hard.expired() or self._soft.expired()):
                raise  # one of its own
        finally:
            self._over = True
        if self._hard.expired():
            raise TimeLimitExceeded(f"its limit is {self._hard_end - began:.3g} s")
        raise SoftTimeLimitExceeded(f"its soft limit is {self._soft_end - began:.3g} s")

    def _set_timers(self) -> None:
        if self._over:
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
        """See :class:`Run`."""
        return 0.0 if self._has_ended else max(0.0, self._first_end - ticks())

    def extend(self, seconds: float) -> None:
        """See :class:`Run`."""
        check_span(seconds)
        with self._lock:
            if self._has_ended:
                raise RunEnded(f"the time of {self._message!r} was over; it will be run again")
            more_s = max(0.0, ticks() + seconds - self._first_end)
            self._soft_end, self._hard_end = self._soft_end + more_s, self._hard_end + more_s
            self._work.extend_until(self._hard_end + self._slack_s)
        if threading.get_ident() == self._thread_id:
            self._set_timers()
        else:
            self._loop.call_soon_threadsafe(self._set_timers)

    def report_progress(self, fraction: float | None = None, text: str = "") -> None:
        """See :class:`Run`."""
        self._work.report(Report.checked(self._message.uid, self._message.attempt, fraction, text))
