"""Deliveries that side threads hand to the thread of a kombu connection, and the pipe that wakes it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from emsworker.extending.processes import Wake, forks


@dataclass(eq=False)
class Delivery:
    """A message for a consumer.

    Attributes:
        owner, queue: the channel, and the name of the queue.
        prepare: returns what gives it to the consumer; ``None`` if there is no consumer any more, the message has
            expired or is refused. It is called again if an exception from outside has interrupted it. It is a function
            in Python, after whose end no such exception comes, as it would after one in C.
        undo: returns it to its queue.
        is_over: it was given to the consumer, or nobody gets it.
    """

    owner: object
    queue: str
    prepare: Callable[[], Callable[[], object] | None]
    undo: Callable[[], object]
    is_over: bool = False


class Inbox:
    """Deliveries of one connection; thread-safe.

    The event loop is woken by a pipe, so that it never waits for the database.
    """

    def __init__(self) -> None:
        self._lock = forks.Lock()
        self._woken = Wake()
        self._items: deque[Delivery] = deque()
        self._error: Exception | None = None
        self._pipe: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self._items)

    def fileno(self) -> int:
        """Return the descriptor that is readable while there is something; made at the first call."""
        with self._lock:
            if self._pipe is None:
                self._pipe = os.pipe()
                for end in self._pipe:
                    os.set_blocking(end, False)
                if self._items or self._error is not None:
                    self._signal()
            return self._pipe[0]

    def put(self, items: Iterable[Delivery]) -> None:
        """Add deliveries, all at once."""
        with self._lock:
            self._items.extend(items)
            self._signal()

    def fail(self, error: Exception) -> None:
        """Have the next call of the connection raise an error."""
        with self._lock:
            self._error = error
            self._signal()

    def _signal(self) -> None:
        self._woken.set()
        if self._pipe is not None:
            with suppress(BlockingIOError):  # it is full of signals
                os.write(self._pipe[1], b".")

    def wait(self, seconds: float) -> None:
        """Return as soon as there is something, or after this many seconds."""
        if not self._items and self._error is None:
            self._woken.wait(seconds)

    def deliver(self) -> bool:
        """Deliver all that is there, and return whether a consumer got anything.

        What an exception keeps from its consumer, and what is behind it, is delivered by the next call.

        Raises:
            Exception: the one that :meth:`fail` was given.
        """
        if self._error is not None:
            raise self._error
        found = False
        for _ in range(len(self._items)):
            if (item := self._first()) is None:
                break
            give = item.prepare()
            item.is_over = True  # no exception from outside comes before the next call
            if give is not None:
                found = True
                give()
        self._first()  # the pipe is not readable any more
        return found

    def _first(self) -> Delivery | None:
        """Return the first delivery that is not over; it stays here until it is."""
        with self._lock:
            while self._items and self._items[0].is_over:
                self._items.popleft()
            if self._items:
                return self._items[0]
            if self._pipe is not None:
                with suppress(BlockingIOError):
                    os.read(self._pipe[0], 4096)
            return None

    def withdraw(self, owner: object, queue: str) -> None:
        """Requeue the undelivered messages of a queue that a channel no longer consumes from."""
        with self._lock:
            found = [item for item in self._items if item.owner is owner and item.queue == queue and not item.is_over]
        for item in found:
            item.undo()
            item.is_over = True

    def close(self) -> None:
        """Close the pipe."""
        with self._lock:
            pipe, self._pipe = self._pipe, None
        for end in pipe or ():
            with suppress(OSError):
                os.close(end)
