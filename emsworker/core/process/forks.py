"""Fork safety: a child starts with free locks, and without the connections and the work of its parent's threads.

Only the thread that forks exists in the child. A lock that another thread held stays locked there for ever, and a
socket is shared with the parent. Therefore every lock of this package is made here, and an object that has more to
reset registers a method. The linter bans :mod:`threading`'s own locks, and ``cached_property``, which has one in Python
3.11.
"""

from __future__ import annotations

import logging  # noqa: F401 - first: it locks itself before a fork, and must do so after `fork_blocked` has waited
import os
import threading
import weakref
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Generic, TypeVar, overload

Mutex = threading.Lock
"""Type of the locks that :func:`Lock` makes."""

T = TypeVar("T")
L = TypeVar("L")

_PATIENCE_S = 10.0

_locks: weakref.WeakSet[Any] = weakref.WeakSet()
# Functions, which do not hold their object; the callback of a `WeakMethod` fails while a process ends.
_resets: weakref.WeakKeyDictionary[Any, list[Callable[[Any], object]]] = weakref.WeakKeyDictionary()


def _freed(lock: L) -> L:
    _locks.add(lock)
    return lock


def Lock() -> Mutex:
    """Make a lock that is free in a forked child."""
    return _freed(threading.Lock())


def RLock() -> threading.RLock:
    """Make a lock that only the thread that holds it can release; it is free in a forked child."""
    return _freed(threading.RLock())


class _Condition(threading.Condition):
    """A condition whose ``with`` takes and releases its lock in C.

    Python's own does it in functions, in which an exception from outside, as timeout libraries raise them, leaves the
    lock taken for ever. (Python 3.14 also looks for one between the taking of any lock and the block of its ``with``.)
    """

    __enter__ = property(attrgetter("_lock.__enter__"))
    __exit__ = property(attrgetter("_lock.__exit__"))


def Condition(lock: Mutex | None = None) -> threading.Condition:
    """Make a condition whose lock is free in a forked child, where no thread waits for it."""
    return _freed(_Condition(lock))


class _Event(threading.Event):
    def __init__(self) -> None:
        super().__init__()
        self._cond = _Condition()


def Event() -> threading.Event:
    """Make an event whose lock is free in a forked child; it is set there if it was set."""
    return _freed(_Event())


def after_fork(method: Callable[[], object]) -> None:
    """Call a bound method in each forked child, as long as its object exists.

    The method must not raise, wait, or write to anything that the parent has opened.
    """
    bound: Any = method
    _resets.setdefault(bound.__self__, []).append(bound.__func__)


class _Undivided:
    """Context in which the process does not fork: a fork waits until no thread is inside, for at most 10 seconds.

    It protects code that takes locks of other libraries: OpenSSL sometimes does when it makes contexts and performs
    handshakes, and an import locks each module that it loads.
    """

    def __init__(self) -> None:
        self.start_over()

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._closed, _PATIENCE_S)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Wait until no thread is inside, and let no thread enter."""
        self._changed.acquire()
        self._closed = True
        self._changed.wait_for(lambda: self._inside == 0, _PATIENCE_S)

    def open(self) -> None:
        """Let threads enter again."""
        self._closed = False
        self._changed.notify_all()
        self._changed.release()

    def start_over(self) -> None:
        """Reset in a child, where no thread is inside."""
        self._changed = threading.Condition()
        self._inside = 0
        self._closed = False


fork_blocked = _Undivided()


def _start_over() -> None:
    fork_blocked.start_over()
    for lock in list(_locks):
        lock._at_fork_reinit()
    for owner, functions in list(_resets.items()):
        for function in functions:
            function(owner)


os.register_at_fork(before=fork_blocked.close, after_in_parent=fork_blocked.open, after_in_child=_start_over)


class lazy(Generic[T]):
    """Attribute that is made at its first use and kept in the instance's ``__dict__``, without a lock.

    If two threads make it at once, one value is discarded, so making it must have no effect that needs a close.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> lazy[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> T | lazy[T]:
        if instance is None:
            return self
        kept: T = instance.__dict__.setdefault(self._name, self._make(instance))
        return kept
