"""The gate of a process for poison isolation: a suspect message has the process to itself, so that a crash names it.

A suspect closes the gate: no other message starts in its process, whatever its topic and group. Once those that run
have ended, it starts and is recorded as running (named). Both waits are bounded by its isolation: what runs on is then
company, and without a proof nobody is charged. So neighbours wait for a second at first, and longer only for messages
that were there when several processes died.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from enum import Enum

from emsworker.core.process import forks
from emsworker.core.process.clock import ticks

_SLICE_S = 1.0


class Passage(Enum):
    """The answer to a suspect: it has the process to itself, runs beside others, or is to ask again."""

    ALONE = 0
    BESIDE = 1
    WAIT = 2


class IsolationGate:
    """Lets suspect messages run alone in a process; thread-safe.

    Attributes:
        closed: no message may start but the suspect's; read without the lock before each message.
    """

    def __init__(self) -> None:
        self._changed = forks.Condition()
        self._others: set[object] = set()  # claims that are worked on
        self._holder: object | None = None  # the suspect that waits for the process, or has it
        self._closed_at = self._room_s = 0.0
        self._alone_since = math.inf
        self._waiting = 0  # threads that would start something
        self.closed = False

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Work on a usual claim during the block."""
        token = object()
        with self._changed:
            self._others.add(token)
        try:
            yield
        finally:
            self.leave(token)

    def wait_open(self, seconds: float) -> bool:
        """Wait until the gate is open, for at most this many seconds; return whether it is."""
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: not self.closed, seconds)
            self._waiting -= 1
            return not self.closed

    def ask(self, suspect: object, room_s: float) -> Passage:
        """Wait for the process, for at most a second.

        Args:
            suspect: the claim that waits; it must :meth:`leave`, whatever the answer.
            room_s: seconds after which it runs beside those that have not ended.
        """
        if self._holder is not suspect and not self.wait_open(_SLICE_S):
            return Passage.WAIT
        with self._changed:
            if self._holder is None:
                self._holder, self._room_s, self.closed = suspect, room_s, True
                self._closed_at = ticks()
            elif self._holder is not suspect:
                return Passage.WAIT
            left_s = self._closed_at + room_s - ticks()
            if self._changed.wait_for(lambda: not self._others, max(0.0, min(left_s, _SLICE_S))):
                self._alone_since = ticks()
                return Passage.ALONE
            if left_s > _SLICE_S:
                return Passage.WAIT
            self._open()
            self._others.add(suspect)
            return Passage.BESIDE

    def overstays(self, suspect: object, now: float) -> bool:
        """Return whether a suspect has had the process to itself for long enough, and others wait."""
        return self._holder is suspect and self._waiting > 0 and now > self._alone_since + self._room_s

    def open(self, suspect: object) -> None:
        """Let others run beside a suspect that runs."""
        with self._changed:
            if self._holder is suspect:
                self._others.add(suspect)
                self._open()

    def leave(self, run: object) -> None:
        """End the work on a claim."""
        with self._changed:
            self._others.discard(run)
            if self._holder is run:
                self._open()
            self._changed.notify_all()

    def _open(self) -> None:
        self._holder, self.closed, self._alone_since = None, False, math.inf
        self._changed.notify_all()
