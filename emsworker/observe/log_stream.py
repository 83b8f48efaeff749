"""A stream for log lines that nobody need read: a full pipe costs lines, never work.

A log collector that hangs leaves a pipe full. Whoever writes to it then waits for ever, with the logging handler's lock
held, and so does every other thread that logs: a worker would hold its messages, and hear no signal.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
from typing import Protocol, TextIO

from emsworker.core.counted import counted
from emsworker.core.process.clock import ticks

_PATIENCE_S = 1.0  # for a reader that is only slow
_NONBLOCKING = os.O_WRONLY | os.O_NONBLOCK | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC


class _Outlet(Protocol):
    """Writes as many bytes as there is room for; raises BlockingIOError if there is none."""

    def __call__(self, data: memoryview, /) -> int: ...


class LogStream:
    """Writes texts to the file of a stream, and leaves out those for which there is no room after a second.

    How many were left out is written when there is room again. To a regular file it writes as usual.

    Args:
        stream: standard error, or another one.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._file: tuple[int, int] | None = None
        self._outlet: _Outlet | None = None
        self._missed = 0
        self._broken_off = False

    def write(self, text: str) -> None:
        """Write a text, or count it as left out."""
        outlet = self._find_outlet()
        if outlet is None:
            self._stream.write(text)
            self._stream.flush()
            return
        note = "\n" if self._broken_off else ""
        if self._missed:
            note += f"[{counted(self._missed, 'line')} left out: nobody read this stream]\n"
        data = memoryview((note + text).encode(errors="backslashreplace"))
        written = self._write_all(outlet, data, 0.0 if self._missed else _PATIENCE_S)
        if written == len(data):
            self._missed, self._broken_off = 0, False
        else:
            self._missed += 1
            self._broken_off |= written > 0

    def flush(self) -> None:
        """Do nothing: nothing is kept."""

    def _write_all(self, outlet: _Outlet, data: memoryview, patience_s: float) -> int:
        until, written = ticks() + patience_s, 0
        while written < len(data):
            try:
                written += outlet(data[written:])
            except BlockingIOError:
                if ticks() >= until:
                    break
                select.select([], [self._stream], [], min(0.05, patience_s))
            except OSError:  # the reader is gone
                break
        return written

    def _find_outlet(self) -> _Outlet | None:
        """Return how to write without waiting; anew if the descriptor has been given another file meanwhile."""
        try:
            number = self._stream.fileno()
            status = os.fstat(number)
        except (OSError, ValueError, AttributeError):  # closed, or no file at all
            return None
        if (file := (status.st_dev, status.st_ino)) != self._file:
            self._file, self._outlet = file, _outlet_of(number, status.st_mode)
        return self._outlet


def _outlet_of(number: int, mode: int) -> _Outlet | None:
    if stat.S_ISSOCK(mode):
        ours = socket.socket(fileno=os.dup(number))
        return lambda data: ours.send(data, socket.MSG_DONTWAIT)
    if not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
        return None
    # O_NONBLOCK belongs to an open file, which others may share; so this opens it once more.
    with contextlib.suppress(OSError):
        again = os.open(f"/proc/self/fd/{number}", _NONBLOCKING)
        return lambda data: os.write(again, data)
    return lambda data: _write_if_room(number, data)


def _write_if_room(number: int, data: memoryview) -> int:
    """Write a part that a pipe takes at once if there is room for anything."""
    if not select.select([], [number], [], 0)[1]:
        raise BlockingIOError
    return os.write(number, data[: select.PIPE_BUF])
