"""Keys of a terminal, one by one and without echo."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from types import TracebackType

_NAMES = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[C": "right",
    b"\x1bOC": "right",
    b"\x1b[D": "left",
    b"\x1bOD": "left",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\r": "enter",
    b"\n": "enter",
    b"\x1b": "escape",
    b"\x7f": "backspace",
    b"\b": "backspace",
}
_ESCAPE_S = 0.02  # the bytes of one key come together


class Keys:
    """Keys that are pressed, as a context that changes the terminal's mode and restores it.

    A key is a character, or ``up``, ``down``, ``left``, ``right``, ``page up``, ``page down``, ``enter``, ``escape``
    or ``backspace``.
    """

    def __init__(self) -> None:
        self._input = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._input)
        self._unread = b""

    def __enter__(self) -> Keys:
        tty.setcbreak(self._input)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)

    def read(self, timeout_s: float) -> str | None:
        """Return the next key, or ``None`` if none was pressed in time.

        Raises:
            EOFError: the terminal is gone.
        """
        if not self._unread and not self._wait(timeout_s):
            return None
        while not self._is_whole() and self._wait(_ESCAPE_S):
            pass
        return self._take()

    def _wait(self, timeout_s: float) -> bool:
        if not select.select([self._input], [], [], max(0.0, timeout_s))[0]:
            return False
        more = os.read(self._input, 1024)
        if not more:
            raise EOFError("the terminal is gone")
        self._unread += more
        return True

    def _is_whole(self) -> bool:
        if self._unread[:1] == b"\x1b":
            return len(self._unread) > 2
        return len(self._unread) >= _length(self._unread[0])

    def _take(self) -> str:
        for raw in sorted(_NAMES, key=len, reverse=True):
            if self._unread.startswith(raw) and not (raw == b"\x1b" and self._unread[1:2] in (b"[", b"O")):
                self._unread = self._unread[len(raw) :]
                return _NAMES[raw]
        if self._unread[:1] == b"\x1b":  # a key without a name here
            end = next((at for at, byte in enumerate(self._unread[2:], 3) if 64 <= byte <= 126), len(self._unread))
            self._unread = self._unread[end:]
            return ""
        size = _length(self._unread[0])
        raw, self._unread = self._unread[:size], self._unread[size:]
        return raw.decode(errors="replace")


def _length(first: int) -> int:
    """The number of bytes of a character in UTF-8, by its first."""
    return 1 if first < 0xC0 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
