"""Coroutines of a process: one event loop in a thread of its own, shared by the consumers.

A consumer hands over consecutive messages of its claim and waits; they run at once. As soon as the first of them has
ended it is recorded, so that the acked offset follows the lowest message that still runs.

asyncio is imported by the functions that need it: a worker without coroutines starts sooner without it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from emsworker.consume.claim_progress import Ended
from emsworker.consume.claim_run import ClaimRun, ThreadRun
from emsworker.consume.watch import NO_LIMITS, Watch
from emsworker.core.errors import EmsError, RunCancelled, RunEnded, SoftTimeLimitExceeded, TimeLimitExceeded
from emsworker.core.model import Message
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.process.runnable import Runnable
from emsworker.core.run import check_span
from emsworker.tasks.handler import Handler
from emsworker.tasks.options import HandlerOptions

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
OnDeath = Callable[[str, BaseException], None]

_SLACK_S = 5.0  # if a handler blocks the event loop, the thread that waits is ended this much later


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
        self._thread: _LoopThread | None = None

    @property
    def thread_id(self) -> int:
        """The id of its thread; 0 if none has been started."""
        return (self._thread.ident or 0) if self._thread is not None else 0

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; called by threads other than the loop's own."""
        import asyncio

        return asyncio.run_coroutine_threadsafe(coroutine, self._running()).result()

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                import asyncio

                self._loop = asyncio.new_event_loop()
                self._thread = _LoopThread(self._loop, self._on_death)
                self._thread.start()
            return self._loop


class CallersLoop(EventLoop):
    """An event loop of the only thread that runs coroutines, so that a debugger meets them there."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, in the calling thread."""
        if self._loop is None:
            import asyncio

            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(coroutine)


class CoroutineRun(ThreadRun):
    """The run of a coroutine, with limits of its own, which are timers of the event loop.

    Args:
        claim_run: the claim that is worked on.
        watch: of the thread that waits for it.
        message: of the claim.
        options: of its handler.
        hard_s: seconds that it may run.
    """

    def __init__(
        self, claim_run: ClaimRun, watch: Watch, message: Message, options: HandlerOptions, hard_s: float
    ) -> None:
        import asyncio

        super().__init__(claim_run, watch, message, ticks())
        soft_s = options.soft_time_limit_s
        self._soft_end = self._since + (math.inf if soft_s is None else soft_s)
        self._hard_end = self._since + hard_s
        self._lock = forks.Lock()  # the coroutine may pass the run to a thread
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._call: Awaitable[Any] | None = None
        self._wants_flag = options.on_cancel == "flag"
        self._is_cancelled = False  # by us
        self._over = False
        self._soft = asyncio.Timeout(None)  # asyncio.timeout() needs a running loop, and a lane has none
        self._hard = asyncio.Timeout(None)

    async def within_limits(self, call: Awaitable[Any]) -> Any:
        """Await the handler, and cancel it when it exceeds a limit, or its message is cancelled.

        Raises:
            SoftTimeLimitExceeded, TimeLimitExceeded: it did not end in time. The coroutine itself gets CancelledError.
            RunCancelled: its message was cancelled.
        """
        import asyncio

        self._loop, self._thread_id = asyncio.get_running_loop(), threading.get_ident()
        self._task, self._call = asyncio.current_task(), call
        try:
            if self.cancelled:  # before the loop was known here
                self._cancel()
            async with self._hard, self._soft:  # a coroutine that survives the first is cancelled by the second
                self._set_timers()
                return await call
        except TimeoutError as error:
            # The stack at which the coroutine was cancelled is that of the CancelledError.
            trace = error.__cause__.__traceback__ if error.__cause__ is not None else None
            if self._hard.expired():
                text = f"its limit is {self._hard_end - self._since:.3g} s"
                raise TimeLimitExceeded(text).with_traceback(trace) from None
            if self._soft.expired():
                text = f"its soft limit is {self._soft_end - self._since:.3g} s"
                raise SoftTimeLimitExceeded(text).with_traceback(trace) from None
            raise  # the handler's own
        except asyncio.CancelledError as error:
            if not self._is_cancelled:
                raise
            raise RunCancelled().with_traceback(error.__traceback__) from None
        finally:
            self._over = True
            self._hard = self._soft = asyncio.Timeout(None)  # they know the task, which would keep the handler's error
            self._task = self._call = None

    @property
    def suspended(self) -> Awaitable[Any] | None:
        """The coroutine, if it went on after the loop had cancelled it; ``None`` if the loop has not come to that."""
        return self._call if self._hard.expired() else None

    def interrupt(self) -> None:
        """Cancel the coroutine, unless it wants only the flag."""
        if self._loop is not None and not self._wants_flag:
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None and not self._is_cancelled and not self._wants_flag:
            self._is_cancelled = True
            self._task.cancel()

    def _set_timers(self) -> None:
        if self._over or self._loop is None:
            return
        for timer, end in ((self._soft, self._soft_end), (self._hard, self._hard_end)):
            if not timer.expired():
                timer.reschedule(None if math.isinf(end) else self._loop.time() + end - ticks())

    @property
    def _has_ended(self) -> bool:
        return self._over or self._claim_run.closed or self._hard.expired()

    @property
    def _first_end(self) -> float:
        return self._hard_end if self._soft.expired() else min(self._soft_end, self._hard_end)

    @property
    def time_left(self) -> float:
        return 0.0 if self._has_ended else max(0.0, self._first_end - ticks())

    def extend(self, seconds: float) -> None:
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


def thread_limits(handler: object, group_timeout_s: float) -> HandlerOptions:
    """Return the limits of the thread that runs a handler; a coroutine has limits of its own."""
    if not isinstance(handler, Handler):
        return NO_LIMITS
    return guarded(handler.options, group_timeout_s)[1] if handler.is_async else handler.options


def guarded(options: HandlerOptions, group_timeout_s: float) -> tuple[float, HandlerOptions]:
    """Return the time limit of a coroutine, and the limits of its thread, which only apply if the loop is blocked."""
    limit_s = min(options.timeout_s or group_timeout_s, options.hard_time_limit_s or math.inf)
    slack_s = min(max(limit_s, 1.0), _SLACK_S)
    return limit_s, replace(options, timeout_s=limit_s + slack_s, hard_time_limit_s=None, soft_time_limit_s=None)


async def run_together(
    messages: list[Message],
    run: Callable[[Message], Awaitable[Sequence[Ended]]],
    done: Callable[[list[Ended], Message | None], None],
) -> None:
    """Run all messages at once.

    Args:
        run: runs one message; it raises only what must end the process.
        done: called with the ends of messages in order, once all before them have ended, and the first that still runs.
    """
    import asyncio

    ends: dict[int, Ended] = {}
    first = 0

    async def one(number: int) -> None:
        nonlocal first
        (ends[number],) = await run(messages[number])
        begin = first
        while first in ends:
            first += 1
        if first > begin:
            following = messages[first] if first < len(messages) else None
            done([ends.pop(number) for number in range(begin, first)], following)

    async with asyncio.TaskGroup() as group:  # if our own bookkeeping fails, no coroutine goes on unattended
        for number in range(len(messages)):
            group.create_task(one(number))
