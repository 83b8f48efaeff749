"""Deliveries that side threads hand to the thread of a kombu connection, and the pipe that wakes it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from emsworker.core.process import forks


@dataclass(frozen=True, eq=False)
class Delivery:
    """A message for a consumer.

    Attributes:
        owner, queue: the channel, and the name of the queue.
        deliver: gives it to the consumer; returns false if there is none any more, or the message has expired.
        undo: returns it to its queue.
    """

    owner: object
    queue: str
    deliver: Callable[[], bool]
    undo: Callable[[], object]


class Inbox:
    """Deliveries of one connection; thread-safe.

    The event loop is woken by a pipe, so that it never waits for the database.
    """

    def __init__(self) -> None:
        self._lock = forks.Lock()
        self._changed = forks.Condition(self._lock)
        self._items: deque[Delivery] = deque()
        self._error: Exception | None = None
        self._pipe: tuple[int, int] | None = None
        self._pid = os.getpid()

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
        self._changed.notify_all()
        if self._pipe is not None:
            with suppress(BlockingIOError):  # it is full of signals
                os.write(self._pipe[1], b".")

    def take(self, wait_s: float) -> list[Delivery]:
        """Return all deliveries as soon as there is one; none if none has come in time.

        Raises:
            Exception: the one that :meth:`fail` was given.
        """
        with self._changed:
            if not self._items and self._error is None and wait_s > 0:
                self._changed.wait(wait_s)
            if self._pipe is not None:
                with suppress(BlockingIOError):
                    os.read(self._pipe[0], 4096)
            if self._error is not None:
                raise self._error
            found = list(self._items)
            self._items.clear()
            return found

    def withdraw(self, owner: object, queue: str) -> None:
        """Requeue the undelivered messages of a queue that a channel no longer consumes from."""
        with self._lock:
            found = [item for item in self._items if item.owner is owner and item.queue == queue]
            for item in found:
                self._items.remove(item)
        for item in found:
            item.undo()

    def close(self) -> None:
        """Close the pipe."""
        with self._lock:
            pipe, self._pipe = self._pipe, None
        for end in pipe or ():
            with suppress(OSError):
                os.close(end)
