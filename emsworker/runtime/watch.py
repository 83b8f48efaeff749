"""What one thread runs just now, and since when: what time limits are measured by."""

from __future__ import annotations

import threading

from emsworker.core.clock import ticks
from emsworker.core.model import Message
from emsworker.task import HandlerOptions

NO_LIMITS = HandlerOptions()


class Watch:
    """The running messages of a thread; it writes, the completer looks.

    Args:
        thread_id: in which the soft limit is raised.
        group_timeout_s: for handlers without a timeout of their own.
    """

    def __init__(self, thread_id: int, group_timeout_s: float) -> None:
        self.thread_id = thread_id
        self.group_timeout_s = group_timeout_s
        self.lock = threading.Lock()
        self.running: int | None = None
        self.running_through = 0  # a batch handler runs several messages at once
        self.running_since = 0.0
        self.options = NO_LIMITS
        self.soft_limit_sent = False
        self.interruptible = False  # a handler runs, and nothing of ours

    def begin(self, messages: list[Message], options: HandlerOptions, now: float) -> None:
        """These run from now on; the caller holds the lock."""
        self.running = messages[0].offset
        self.running_through = messages[-1].offset
        self.running_since = now
        self.options = options
        self.soft_limit_sent = self.interruptible = False

    @property
    def timeout_s(self) -> float:
        """After how many seconds the running message is moved to retry."""
        return self.options.timeout_s or self.group_timeout_s

    @property
    def time_limit_s(self) -> float:
        """How long it may run before it is taken from its thread."""
        return min(self.timeout_s, self.options.hard_time_limit_s or self.timeout_s)


class Lane(Watch):
    """A part of a claim's keys, in the order of the stream, and the thread that works through it.

    Attributes:
        ended: it is through, has stopped, or hangs for good.
        error: what must end the process.
        count, ran_s: how many messages have been run, and how long that took.
    """

    def __init__(self, group_timeout_s: float) -> None:
        super().__init__(0, group_timeout_s)
        self.queue: list[Message] = []
        self.ended = threading.Event()
        self.error: BaseException | None = None
        self.count, self.ran_s = 0, 0.0
        self.message: Message | None = None

    def start(self, message: Message, options: HandlerOptions) -> None:
        """Begin to run a message."""
        with self.lock:
            self.begin([message], options, ticks())
            self.message = message

    def stop(self) -> bool:
        """It has ended; false if it was given up meanwhile."""
        with self.lock:
            self.running = None
            self.count += 1
            self.ran_s += ticks() - self.running_since
            return not self.ended.is_set()

    def give_up(self, since: float) -> Message | None:
        """Leave the thread alone with the message that it began at ``since``, unless that has just ended."""
        with self.lock:
            if self.running is None or self.running_since != since:
                return None
            self.running = None
            self.ended.set()
            return self.message
