"""Exceptions from outside, as timeout libraries raise them by a signal or in another thread, at a place that is chosen."""

import sys
from collections.abc import Collection
from types import FrameType
from typing import Any


class Timeout(Exception):
    """What a timeout library raises."""


class CutAtCall:
    """Raises once, where Python looks for exceptions from outside: a function begins, or one in C has returned.

    It does not look between the end of a ``with`` block and the release of its lock.
    """

    def __init__(self, number: int, files: Collection[str]) -> None:
        self.left, self.raised, self._files = number, False, files

    def __enter__(self) -> "CutAtCall":
        sys.setprofile(self.see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def see(self, frame: FrameType, event: str, arg: Any) -> None:
        if self.raised or event not in ("call", "c_return") or frame.f_code.co_filename not in self._files:
            return
        self.left -= 1
        if self.left < 0:
            self.raised = True
            raise Timeout
