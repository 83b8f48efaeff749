"""Isolation of suspect messages, which may have killed their processes.

A suspect has its process to itself, so that a crash names it. It closes the :class:`IsolationGate`: no other message
starts in its process, whatever its topic and group. Once those that run have ended, it starts and is recorded as
running (named). Both waits are bounded by its isolation: after that it runs beside others, and a crash charges none of
them. So neighbours wait for a second at first, and longer only for messages that were there when several processes
died.

A suspect that kills its process takes with it all that its threads could have done until there is another process.
Therefore processes take turns (:class:`Suspects`):

- a process takes no suspects at first if the one before it crashed; it runs what is not suspect;
- it takes those of one group at a time, as long as they do no harm, so that they are not lost with another group's;
- of all processes of a worker one at a time takes a message that is to run alone.

A turn ends after ``TURN_S``, so that a long message does not delay others for longer; by then a process that died of
its message has been replaced.
"""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Iterator
from enum import Enum
from mmap import mmap

from emsworker.core.model import Claim, Isolation
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks

_SLICE_S = 1.0
TURN_S = 3.0
SPARE_S = 2.0  # for so long a process after a crash takes no suspects
_UNTIL = struct.Struct("d")
SHARED_BYTES = _UNTIL.size


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


class Suspects:
    """Decides which suspects the threads of one process may take now; thread-safe.

    Two threads that ask at the same time may get the same answer, and then take suspects at once. That does little
    harm, and no claim has to wait for another one.

    Args:
        shared: ``SHARED_BYTES`` zeros that all processes of a worker have mapped: the end of the present turn.
        spare_s: seconds from now for which the process takes no suspects.
    """

    def __init__(self, shared: mmap | bytearray | None = None, spare_s: float = 0.0) -> None:
        self._lock = forks.Lock()
        self._shared = bytearray(SHARED_BYTES) if shared is None else shared
        self._from = ticks() + spare_s if spare_s else -math.inf
        self._group_id, self._group_until = 0, -math.inf  # whose suspects are taken

    def most_isolation(self, group_id: int) -> Isolation:
        """Return the most isolation of a claim that may be taken of a group now."""
        now = ticks()
        with self._lock:
            if now < self._from or (group_id != self._group_id and now < self._group_until):
                return Isolation.NONE
            is_taken = now < self._until() <= now + TURN_S  # what is beyond was read while it was written
            return Isolation.FEW if is_taken else Isolation.LAST

    @contextlib.contextmanager
    def turn(self, claim: Claim) -> Iterator[None]:
        """Have a turn while a claim is worked on, if it is suspect."""
        if claim.isolation is Isolation.NONE:
            yield
            return
        until = ticks() + TURN_S
        with self._lock:
            self._group_id, self._group_until = claim.group_id, until
            if claim.isolation.alone:
                _UNTIL.pack_into(self._shared, 0, until)
        try:
            yield
        finally:
            with self._lock:
                if claim.isolation.alone and self._until() == until:
                    _UNTIL.pack_into(self._shared, 0, 0.0)

    def none_left(self, group_id: int) -> None:
        """Let suspects of other groups be taken: this one has none."""
        with self._lock:
            if group_id == self._group_id:
                self._group_until = -math.inf

    def _until(self) -> float:
        return float(_UNTIL.unpack_from(self._shared, 0)[0])
