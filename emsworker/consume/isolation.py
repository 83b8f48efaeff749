"""Poison isolation: suspect messages start one at a time in a process, so that a crash names only one of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from emsworker.core.process import forks
from emsworker.core.process.clock import ticks

_TURN_S = 1.0


class IsolationGate:
    """Lets one message run alone for its first second: most poison crashes sooner, and others wait no longer."""

    def __init__(self) -> None:
        self._changed = forks.Condition()
        self._holder: object | None = None
        self._until = 0.0

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        """Wait for the gate, and hold it during the block."""
        me = object()
        with self._changed:
            while self._holder is not None and (left_s := self._until - ticks()) > 0:
                self._changed.wait(left_s)
            self._holder, self._until = me, ticks() + _TURN_S
        try:
            yield
        finally:
            with self._changed:
                if self._holder is me:
                    self._holder = None
                    self._changed.notify()
