"""Stop signals of ``ems worker`` and ``ems beat`` until their own loops take over. Imports next to nothing.

Until then nothing has been written anywhere, so a stop signal exits at once, with code 0. There is no gap between a
process and those that it starts either: the signals are blocked around the start; the new process inherits that,
installs its handlers, and unblocks them. Signals that came in between are delivered then.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
_helpers: set[int] = set()


def leave_at_once() -> None:
    """Make stop signals end this process with exit code 0 from now on, and ignore SIGHUP."""
    for number in STOPS:
        signal.signal(number, _leave)
    pass_over_hangups()
    unblock()


def pass_over_hangups() -> None:
    """Ignore SIGHUP, which a terminal sends to all its processes: the supervisor replaces its children in order."""
    signal.signal(signal.SIGHUP, lambda number, frame: None)  # a handler, because children inherit SIG_IGN


def _leave(number: int, frame: object) -> None:
    for pid in _helpers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(0)


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Block stop signals and SIGHUP around the start of a process that calls :func:`unblock`; they come afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*STOPS, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock() -> None:
    """Deliver the signals sent so far; call it when the handlers of this process are installed."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*STOPS, signal.SIGHUP))


def note_helper(pid: int) -> None:
    """Kill this child with the process when a stop signal ends it early; called with the signals blocked."""
    _helpers.add(pid)


def forget_helper(pid: int) -> None:
    """Forget a child that has ended."""
    _helpers.discard(pid)


def ignore_stops() -> None:
    """Ignore stop signals in a process that is about to end; the interpreter would restore the deadly default first."""
    for number in (*STOPS, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
