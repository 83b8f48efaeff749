"""The watch over a thread that runs handlers: its running messages, since when, and their time limits."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeVar

from emsworker.core.errors import INTERRUPTIONS, RunCancelled, RunEnded, SoftTimeLimitExceeded
from emsworker.core.model import Message
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.process.forks import Mutex
from emsworker.tasks.middleware import RunBracket
from emsworker.tasks.options import HandlerOptions

log = logging.getLogger(__name__)

T = TypeVar("T")

NO_LIMITS = HandlerOptions()

_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
_ROUNDS = 100


class Watch:
    """The running messages of a thread, which writes; the flusher reads.

    Args:
        thread_id: of the thread in which the soft limit is raised.
        group_timeout_s: for handlers without a timeout of their own.
        lock: of the claim, if the thread works through all of it.

    Attributes:
        abandoned: what runs is not waited for any longer; its message has ended, or its claim has another owner.
    """

    def __init__(self, thread_id: int, group_timeout_s: float, lock: Mutex | None = None) -> None:
        self.thread_id = thread_id
        self.group_timeout_s = group_timeout_s
        self.lock = lock or forks.Lock()
        self.abandoned = False
        self.running: int | None = None
        self.running_through = 0  # a batch handler runs several messages at once
        self.running_since = 0.0
        self.options = NO_LIMITS
        self.extension_s = 0.0  # by which the handler has asked to extend its limits
        self.soft_limit_sent = False
        self.is_cancelled = False  # the handler gets RunCancelled, or has got it
        self.interruptible = False  # handler code runs, not code of EMS
        self._sending = False  # somebody may send an exception just now
        self.is_recorded = False  # the end of what runs was committed with its handler's transaction
        self.bracket: RunBracket | None = None  # of what runs, if middleware has brackets

    def begin(self, messages: list[Message], options: HandlerOptions, now: float) -> None:
        """Mark messages as running from now on; the caller holds the lock."""
        self.running = messages[0].offset
        self.running_through = messages[-1].offset
        self.running_since = now
        self.options = options
        self.extension_s = 0.0
        self.soft_limit_sent = self.is_cancelled = self.interruptible = self.is_recorded = False

    @property
    def timeout_s(self) -> float:
        """Seconds after which the running message is moved to retry."""
        return (self.options.timeout_s or self.group_timeout_s) + self.extension_s

    @property
    def time_limit_s(self) -> float:
        """Seconds that it may run before it is taken from its thread."""
        hard_s = self.options.hard_time_limit_s
        return self.timeout_s if hard_s is None else min(self.timeout_s, hard_s + self.extension_s)

    @property
    def first_limit_s(self) -> float:
        """Seconds that it may run before the first limit applies."""
        soft_s = self.options.soft_time_limit_s
        if soft_s is None or self.soft_limit_sent:
            return self.time_limit_s
        return min(self.time_limit_s, soft_s + self.extension_s)

    def runs(self, since: float) -> bool:
        """Return whether the run that began at ``since`` still runs; the caller holds the lock."""
        return self.running is not None and self.running_since == since and not self.abandoned

    def time_left(self, since: float) -> float:
        """Seconds until the first limit of the run that began at ``since``; 0 if it has ended."""
        with self.lock:
            return max(0.0, since + self.first_limit_s - ticks()) if self.runs(since) else 0.0

    def extend(self, since: float, seconds: float) -> None:
        """Move all limits of the run that began at ``since``, so that the first is at least ``seconds`` away.

        Raises:
            RunEnded: it has ended, or its time was over.
        """
        with self.lock:
            if not self.runs(since):
                raise RunEnded("the time of this run was over; the message is run elsewhere")
            self.extension_s += max(0.0, ticks() + seconds - since - self.first_limit_s)

    def extend_until(self, end: float) -> None:
        """Extend the thread's limits at least to ``end``, for a coroutine, which has limits of its own."""
        with self.lock:
            self.extension_s += max(0.0, end - self.running_since - self.time_limit_s)

    def is_over(self, since: float) -> bool:
        """Return whether the run that began at ``since`` still runs past its limit; the caller holds the lock."""
        return self.running is not None and self.running_since == since and ticks() - since > self.time_limit_s

    # -- exceptions raised in another thread: the soft limit, and a cancel ---------------------------------------------

    @property
    def was_interrupted(self) -> bool:
        """True if an exception from outside may have cut in two what the handler did."""
        return self.soft_limit_sent or self.is_cancelled

    def send_soft_limit(self, now: float) -> None:
        """Raise SoftTimeLimitExceeded in the handler that runs now, once, if its time is up.

        It arrives at the thread's next bytecode: a handler that waits in C code gets it when it returns from there.
        """
        with self.lock, self._may_send():
            limit = self.options.soft_time_limit_s
            if (
                not self.interruptible
                or limit is None
                or self.was_interrupted
                or now - self.running_since < limit + self.extension_s
            ):
                return
            self.soft_limit_sent = True
            self._send(SoftTimeLimitExceeded)

    def cancel(self, since: float) -> None:
        """Raise RunCancelled, once, in the handler of the run that began at ``since``; see :meth:`send_soft_limit`."""
        with self.lock, self._may_send():
            if self.was_interrupted or not self.runs(since) or self.options.batch or self.options.on_cancel == "flag":
                return
            self.is_cancelled = True
            if self.interruptible:
                self._send(RunCancelled)

    @contextmanager
    def _may_send(self) -> Iterator[None]:
        """Let the thread wait at the end of its handler for what is sent in this block; the caller holds the lock."""
        self._sending = True
        try:
            yield
        finally:
            self._sending = False

    def _send(self, error: type[BaseException]) -> None:
        """Raise an error in the thread; the caller holds the lock."""
        _raise_in(ctypes.c_ulong(self.thread_id), ctypes.py_object(error))

    def call_interruptibly(self, call: Callable[[], T]) -> T:
        """Call a handler; what is raised from outside arrives inside this call or never, so never in a commit of ours.

        Raises:
            SoftTimeLimitExceeded: the limit passed.
            RunCancelled: the message was cancelled.

        Only one of both is sent, and only once: nothing is pending when this returns.
        """
        process = os.getpid()
        try:
            try:
                with self.lock:
                    if self.is_cancelled:  # before there was a handler to raise it in
                        raise RunCancelled
                    self.interruptible = True
                return call()
            finally:
                self._end_interruptible()
        finally:
            if os.getpid() != process:
                _end_forked()

    def _end_interruptible(self) -> None:
        """Wait without the lock: on Python 3.14 an exception that arrives as one is taken leaves it taken for ever."""
        try:
            self.interruptible = False  # who sends later sees this, and who has not seen it says so
            while self._sending:
                time.sleep(0)
            if self.was_interrupted:
                _let_arrive()
        except INTERRUPTIONS:  # it arrived right here, and there is only one
            self.interruptible = False
            raise


def _let_arrive() -> None:
    """Take what was sent to this thread and has not arrived: it was too late.

    Python looks for it at each turn of a loop. To take it back with NULL would leave Python 3.11 looking for ever: in a
    process with a debugger, a profiler or coverage the next call never ends.
    """
    try:
        for _ in range(_ROUNDS):
            pass
    except INTERRUPTIONS:
        pass


def _end_forked() -> NoReturn:
    """End a forked process that returns from the handler: the message and the worker belong to its parent."""
    error = sys.exc_info()[1]
    if not isinstance(error, SystemExit):
        log.error("a process that a handler forked came back from the handler; it ends here", exc_info=error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if isinstance(error, SystemExit) and not error.code else 1)
