"""The messages that a thread runs now, and since when; time limits are measured by it."""

from __future__ import annotations

from emsworker.core.errors import RunEnded
from emsworker.core.model import Message
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.tasks.options import HandlerOptions

NO_LIMITS = HandlerOptions()


class Watch:
    """The running messages of a thread, which writes; the completer reads.

    Args:
        thread_id: of the thread in which the soft limit is raised.
        group_timeout_s: for handlers without a timeout of their own.
    """

    def __init__(self, thread_id: int, group_timeout_s: float) -> None:
        self.thread_id = thread_id
        self.group_timeout_s = group_timeout_s
        self.lock = forks.Lock()
        self.running: int | None = None
        self.running_through = 0  # a batch handler runs several messages at once
        self.running_since = 0.0
        self.options = NO_LIMITS
        self.extension_s = 0.0  # by which the handler has asked to extend its limits
        self.soft_limit_sent = False
        self.interruptible = False  # handler code runs, not code of EMS

    def begin(self, messages: list[Message], options: HandlerOptions, now: float) -> None:
        """Mark messages as running from now on; the caller holds the lock."""
        self.running = messages[0].offset
        self.running_through = messages[-1].offset
        self.running_since = now
        self.options = options
        self.extension_s = 0.0
        self.soft_limit_sent = self.interruptible = False

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
        return self.running is not None and self.running_since == since

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


class Lane(Watch):
    """A part of a claim's keys, in the order of the stream, and the thread that runs their messages.

    Attributes:
        ended: set when it has finished, has stopped, or hangs for good.
        error: an error that must end the process.
        count, ran_s: the number of messages that have been run, and the seconds that this took.
    """

    def __init__(self, group_timeout_s: float) -> None:
        super().__init__(0, group_timeout_s)
        self.queue: list[Message] = []
        self.ended = forks.Event()
        self.error: BaseException | None = None
        self.count, self.ran_s = 0, 0.0
        self.message: Message | None = None

    def start(self, message: Message, options: HandlerOptions) -> None:
        """Begin to run a message."""
        with self.lock:
            self.begin([message], options, ticks())
            self.message = message

    def stop(self) -> bool:
        """Mark the message as ended; return false if it was given up meanwhile."""
        with self.lock:
            self.running = None
            self.count += 1
            self.ran_s += ticks() - self.running_since
            return not self.ended.is_set()

    def give_up(self, since: float) -> Message | None:
        """Abandon the thread and the message that it began at ``since``, unless that has just ended."""
        with self.lock:
            if not self.is_over(since):
                return None  # it has returned, or asked for more time
            self.running = None
            self.ended.set()
            return self.message
