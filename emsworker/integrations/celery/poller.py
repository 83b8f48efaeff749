"""Poller of results: of the threads of a process that wait, one asks for all that they wait for."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable

from emsworker.extending.processes import Wake, forks, ticks

_POLL_MIN_S, _POLL_MAX_S = 0.003, 0.2
_SHARE = 0.1  # of the time without news: what waiting longer adds to it at most
_LOAD = 4  # the least ratio of a pause to the time that a query takes


class Waiter:
    """Keys that one thread waits for, and the values that have come.

    Attributes:
        values: new values with their keys, to be taken by the thread.
        woken: set when there may be some, or the thread is to look for them.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, bytes | None] = {}
        self.values: deque[tuple[bytes, bytes]] = deque()
        self.woken = Wake()

    def __contains__(self, key: bytes) -> bool:
        return key in self._known

    def add(self, key: bytes) -> None:
        """Wait for a key."""
        self._known.setdefault(key, None)

    def discard(self, key: bytes) -> None:
        """Wait for a key no longer; the garbage collector calls it, so it takes no lock."""
        self._known.pop(key, None)

    def clear(self) -> None:
        """Wait for nothing."""
        self._known.clear()
        self.values.clear()

    def wanted(self) -> list[bytes]:
        """Return the keys."""
        return list(self._known)

    def take(self, found: dict[bytes, bytes]) -> bool:
        """Take the values that are new of those that were found; return whether there are any."""
        news = [(key, found[key]) for key, known in list(self._known.items()) if found.get(key, known) != known]
        for key, value in news:
            if key in self._known:
                self._known[key] = value
                self.values.append((key, value))
        return bool(news)


class ResultPoller:
    """Asks for what the waiters of a process wait for, at growing pauses; thread-safe.

    The pause is a tenth of the time without news: a long wait polls seldom.

    Args:
        find: returns the values of keys.
    """

    def __init__(self, find: Callable[[list[bytes]], dict[bytes, bytes]]) -> None:
        self._find = find
        self._start_over()
        forks.after_fork(self._start_over)

    def _start_over(self) -> None:
        self._waiters: weakref.WeakSet[Waiter] = weakref.WeakSet()
        self._lock = forks.Lock()
        self._looker: Waiter | None = None  # whose thread looks for all
        self._news_at = 0.0

    def hurry(self) -> None:
        """Look at once: somebody begins to wait, or something has come."""
        self._news_at = ticks()
        if (looker := self._looker) is not None:
            looker.woken.set()

    def arrived(self, key: bytes) -> None:
        """Look at once if somebody waits for a result that has been stored."""
        if any(key in waiter for waiter in list(self._waiters)):
            self.hurry()

    def wait(self, waiter: Waiter, timeout_s: float) -> None:
        """Return when a waiter has values, or after ``timeout_s`` seconds."""
        self._waiters.add(waiter)
        ends_at = ticks() + timeout_s
        try:
            while not waiter.values and (left := ends_at - ticks()) > 0:
                pause_s = self._look() if self._may_look(waiter) else _POLL_MAX_S  # who looks may have ended unnoticed
                if not waiter.values:
                    waiter.woken.wait(min(left, pause_s))
        finally:  # also if an exception from outside ends it, wherever it comes
            if self._looker is waiter:
                self._looker = None
                for other in list(self._waiters):
                    other.woken.set()

    def _may_look(self, waiter: Waiter) -> bool:
        with self._lock:
            if self._looker is None:
                self._looker = waiter
            return self._looker is waiter

    def _look(self) -> float:
        """Look once, and return the seconds until the next look."""
        waiters, began = list(self._waiters), ticks()
        keys = list({key for waiter in waiters for key in waiter.wanted()})
        if not keys:
            return math.inf
        found = self._find(keys)
        if news := [waiter for waiter in waiters if waiter.take(found)]:
            self._news_at = ticks()
        for waiter in news:
            if waiter is not self._looker:
                waiter.woken.set()
        return self._pause_s(ticks() - began)

    def _pause_s(self, cost_s: float) -> float:
        quiet = (ticks() - self._news_at) * _SHARE
        return max(min(max(quiet, _POLL_MIN_S), _POLL_MAX_S), _LOAD * cost_s)
