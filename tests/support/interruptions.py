"""Exceptions from outside, as timeout libraries raise them by a signal or in another thread, at a place that is chosen."""

import sys
from collections.abc import Collection
from types import FrameType
from typing import Any


class Timeout(Exception):
    """What a timeout library raises."""


class Cut:
    """Raises once, where Python looks for exceptions from outside: a function begins, or one in C has returned.

    It does not look between the end of a ``with`` block and the release of its lock.

    Args:
        number: of the place, counted in these files.
        files: their names, or the beginnings of them.
        events: of the profiler; in deep stacks Python 3.11 does not survive an exception at "call".
    """

    def __init__(self, number: int, files: tuple[str, ...], events: Collection[str] = ("call", "c_return")) -> None:
        self.left, self.raised, self._files, self._events = number, False, files, events

    def __enter__(self) -> "Cut":
        sys.setprofile(self.see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def see(self, frame: FrameType, event: str, arg: Any) -> None:
        if self.raised or event not in self._events or not frame.f_code.co_filename.startswith(self._files):
            return
        self.left -= 1
        if self.left < 0:
            self.raised = True
            raise Timeout
