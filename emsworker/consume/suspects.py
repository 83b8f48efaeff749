"""The turns in which the processes of a worker take suspect messages, so that one at a time dies of them.

A suspect that kills its process takes with it all that its threads could have done until there is another process:

- a process takes no suspects at first if the one before it crashed; it runs what nobody suspects;
- it takes those of one group at a time, as long as they do no harm, so that they are not lost with another group's;
- of all processes of a worker one at a time takes a message that is to run alone.

A turn ends after ``TURN_S``: nobody waits longer for a long message, and a process that died of it has been replaced.
"""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Iterator
from mmap import mmap

from emsworker.core.model import Claim, Isolation
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks

TURN_S = 3.0
SPARE_S = 2.0  # for so long a process after a crash takes no suspects
_UNTIL = struct.Struct("d")
SHARED_BYTES = _UNTIL.size


class Suspects:
    """Decides which suspects the threads of one process may take now; thread-safe.

    Who asks while another one's claim is under way may get the same answer: then two take suspects at once, which does
    little harm, and nobody else's claim waits for that.

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
