"""Writes of a process, merged: those of many flows that come while one commit is under way share the next one.

The idea is that of a database's group commit, and of the producer's merged sends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from emsworker.extending.errors import StoreUnavailable
from emsworker.extending.processes import Wake, forks

_MOST, _MOST_BYTES = 200, 1 << 20
_LOOK_S = 1.0  # in case the thread whose turn it was has been interrupted before it could begin


class Write(Protocol):
    """A write that shares its commit."""

    @property
    def place(self) -> Any:
        """The row that it locks; commits lock rows in this order, and hold one write of each."""
        ...

    @property
    def size(self) -> int:
        """Bytes of the value that is written."""
        ...


W = TypeVar("W", bound=Write)
R = TypeVar("R")


class _Unwritten(Generic[W, R]):
    """A write that was not committed yet.

    Attributes:
        result: what the commit returned for it.
        wake: wakes its thread, if one waits: it is committed, or its thread is to commit what waits.
    """

    __slots__ = ("result", "wake", "write")

    def __init__(self, write: W) -> None:
        self.write = write
        self.result: Future[R] = Future()
        self.wake = Wake()


class GroupCommit(Generic[W, R]):
    """Commits writes together; thread-safe.

    Args:
        commit: commits some, of places that differ, in the order of their places, and returns a result for each. It may
            be called again for one that it has committed.
    """

    def __init__(self, commit: Callable[[Sequence[W]], Sequence[R]]) -> None:
        self._commit = commit
        self._waiting: deque[_Unwritten[W, R]] = deque()
        self._turn, self._lock = forks.Lock(), forks.Lock()
        self._drains = False

    def settle(self, write: W) -> R:
        """Commit a write, and return its result: by this thread, with those that wait, or by one before it.

        A thread waits for its own result and for nobody's turn, so that all whose writes share a commit go on at once,
        and their next writes share one, too.
        """
        one = _Unwritten[W, R](write)
        self._waiting.append(one)
        try:
            while not one.result.done():
                if self._turn.acquire(blocking=False):
                    try:
                        if not one.result.done():
                            self._commit_waiting(one)
                    finally:
                        self._turn.release()
                        self._wake_next()
                else:
                    one.wake.wait(_LOOK_S)
        except BaseException:
            self._wake_next()  # this thread may have been woken for it
            raise
        return one.result.result()

    def _wake_next(self) -> None:
        with suppress(IndexError):
            self._waiting[0].wake.set()

    def submit(self, write: W, start: Callable[[Callable[[], None]], None]) -> Future[R]:
        """Commit a write with those that wait, by a thread that has been started or is now; for coroutines.

        Args:
            start: has a thread run a call.
        """
        one = _Unwritten[W, R](write)
        self._waiting.append(one)
        with self._lock:
            begins, self._drains = not self._drains, True
        if begins:
            start(self._drain)
        return one.result

    def _drain(self) -> None:
        goes_on = True
        while goes_on:
            try:
                with self._turn:
                    self._commit_waiting(None)
            except BaseException:
                self._drains = False  # what waits is taken by the thread of the next write
                self._wake_next()
                raise
            with self._lock:
                self._drains = goes_on = bool(self._waiting)

    def _commit_waiting(self, own: _Unwritten[W, R] | None) -> None:
        some = self._take()
        order = sorted(some)  # as joins lock flows, against deadlocks
        try:
            outcomes = self._commit_each([some[number].write for number in order])
            for number, outcome in zip(order, outcomes, strict=True):
                if isinstance(outcome, Exception):
                    some[number].result.set_exception(outcome)
                else:
                    some[number].result.set_result(outcome)
                some[number].wake.set()
        except BaseException:  # from outside, as a time limit's: it concerns this thread alone
            left = [one for one in some.values() if one is not own and not one.result.done()]
            self._waiting.extendleft(left)
            raise

    def _take(self) -> dict[Any, _Unwritten[W, R]]:
        """Return some that wait, at most one of each place, by their places."""
        some: dict[Any, _Unwritten[W, R]] = {}
        size = 0
        while self._waiting and len(some) < _MOST and size < _MOST_BYTES:
            if self._waiting[0].write.place in some:
                break
            one = self._waiting.popleft()
            some[one.write.place] = one
            size += one.write.size
        return some

    def _commit_each(self, some: Sequence[W]) -> Sequence[R | Exception]:
        """Commit together; if that fails, each alone, so that none fails for another's sake."""
        try:
            return self._commit(some) if some else []
        except Exception as error:
            if len(some) == 1 or isinstance(error, StoreUnavailable):
                return [error] * len(some)
            return [self._commit_each([one])[0] for one in some]
