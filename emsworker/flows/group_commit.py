"""Writes of a process, merged: those of many flows that come while one commit is under way share the next one.

The idea is that of a database's group commit, and of the producer's merged sends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

from emsworker.extending.errors import StoreUnavailable
from emsworker.extending.processes import forks

_MOST, _MOST_BYTES = 200, 1 << 20


class OfFlow(Protocol):
    """A write of a flow."""

    @property
    def flow_id(self) -> int:
        """Number of the flow."""
        ...

    @property
    def size(self) -> int:
        """Bytes of the value that is written."""
        ...


W = TypeVar("W", bound=OfFlow)
R = TypeVar("R")


class GroupCommit(Generic[W, R]):
    """Commits writes together; thread-safe.

    Args:
        commit: commits some, of flows that differ, in the order of their flows' numbers, and returns a result for each.
            It may be called again for one that it has committed.
    """

    def __init__(self, commit: Callable[[Sequence[W]], Sequence[R]]) -> None:
        self._commit = commit
        self._waiting: deque[tuple[W, Future[R]]] = deque()
        self._turn, self._lock = forks.Lock(), forks.Lock()
        self._drains = False

    def settle(self, write: W) -> R:
        """Commit a write, and return its result: by this thread, with those that wait, or by one before it."""
        result: Future[R] = Future()
        self._waiting.append((write, result))
        while not result.done():
            with self._turn:
                if not result.done():
                    self._commit_waiting(result)
        return result.result()

    def submit(self, write: W, start: Callable[[Callable[[], None]], None]) -> Future[R]:
        """Commit a write with those that wait, by a thread that has been started or is now; for coroutines.

        Args:
            start: has a thread run a call.
        """
        result: Future[R] = Future()
        self._waiting.append((write, result))
        with self._lock:
            begins, self._drains = not self._drains, True
        if begins:
            start(self._drain)
        return result

    def _drain(self) -> None:
        goes_on = True
        while goes_on:
            try:
                with self._turn:
                    self._commit_waiting(None)
            except BaseException:
                self._drains = False  # what waits is taken by the thread of the next write
                raise
            with self._lock:
                self._drains = goes_on = bool(self._waiting)

    def _commit_waiting(self, own: Future[R] | None) -> None:
        some = self._take()
        order = sorted(some)  # as joins lock flows, against deadlocks
        try:
            outcomes = self._commit_each([some[number][0] for number in order])
            for number, outcome in zip(order, outcomes, strict=True):
                _, result = some[number]
                if isinstance(outcome, Exception):
                    result.set_exception(outcome)
                else:
                    result.set_result(outcome)
        except BaseException:  # from outside, as a time limit's: it concerns this thread alone
            left = [one for one in some.values() if one[1] is not own and not one[1].done()]
            self._waiting.extendleft(left)
            raise

    def _take(self) -> dict[int, tuple[W, Future[R]]]:
        """Return some that wait, at most one of each flow, by the flows' numbers."""
        some: dict[int, tuple[W, Future[R]]] = {}
        size = 0
        while self._waiting and len(some) < _MOST and size < _MOST_BYTES:
            if self._waiting[0][0].flow_id in some:
                break
            one = self._waiting.popleft()
            some[one[0].flow_id] = one
            size += one[0].size
        return some

    def _commit_each(self, some: Sequence[W]) -> Sequence[R | Exception]:
        """Commit together; if that fails, each alone, so that none fails for another's sake."""
        try:
            return self._commit(some) if some else []
        except Exception as error:
            if len(some) == 1 or isinstance(error, StoreUnavailable):
                return [error] * len(some)
            return [self._commit_each([one])[0] for one in some]
