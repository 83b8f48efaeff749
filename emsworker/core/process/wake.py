"""A flag that a thread waits for, and that no exception from outside can damage."""

from __future__ import annotations

from contextlib import suppress

from emsworker.core.process import forks


class Wake:
    """A flag, cleared by the wait that it ends; a forked child finds it set.

    It is a lock that is released by setting the flag, because taking a lock is one step: it happens, or an exception
    from outside comes instead. An :class:`threading.Event` takes several, between which such an exception leaves its
    lock in a state that others do not expect.
    """

    def __init__(self) -> None:
        self._lock = forks.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """End the wait of one thread, or the next one."""
        with suppress(RuntimeError):  # it is set
            self._lock.release()

    def wait(self, seconds: float) -> bool:
        """Wait until the flag is set, for at most this many seconds, and clear it; return whether it was set."""
        return self._lock.acquire(timeout=max(0.0, seconds))
