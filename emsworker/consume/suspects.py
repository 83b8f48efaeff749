"""The turns in which the processes of a worker take suspect messages, so that one at a time dies of them.

A suspect that kills its process takes with it all that its threads could have done until there is another process:

- a process takes no suspects at first if the one before it crashed; it runs what nobody suspects;
- it takes those of one group at a time, as long as they do no harm, so that they are not lost with another group's;
- of all processes of a worker one at a time takes a message that is to run alone.

A turn ends after ``TURN_S``: nobody waits longer for a long message, and a process that died of it has been replaced.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from mmap import mmap

from emsworker.core.model import Isolation
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks

TURN_S = 3.0
SPARE_S = 2.0  # for so long a process after a crash takes no suspects
_UNTIL = struct.Struct("d")
SHARED_BYTES = _UNTIL.size


@dataclass(frozen=True)
class Turn:
    """The most that a thread may take of a group.

    Attributes:
        most_isolation: of its claim.
        until: the end of its turn to run a message alone, in :func:`ticks`; 0 if it has none.
    """

    group_id: int
    most_isolation: Isolation
    until: float = 0.0


class Suspects:
    """Decides which suspects the threads of one process may take now; thread-safe.

    Args:
        shared: ``SHARED_BYTES`` zeros that all processes of a worker have mapped: the end of the present turn. Two that
            read them in the same microseconds may both have a turn, which does little harm.
        spare_s: seconds from now for which the process takes no suspects.
    """

    def __init__(self, shared: mmap | bytearray | None = None, spare_s: float = 0.0) -> None:
        self._lock = forks.Lock()
        self._shared = bytearray(SHARED_BYTES) if shared is None else shared
        self._from = ticks() + spare_s if spare_s else -math.inf
        self._group_id, self._group_until = 0, -math.inf  # whose suspects are taken

    def begin(self, group_id: int) -> Turn:
        """Return what may be taken of a group now; it must be given to :meth:`end`."""
        now = ticks()
        with self._lock:
            if now < self._from or (group_id != self._group_id and now < self._group_until):
                return Turn(group_id, Isolation.NONE)
            self._group_id, self._group_until = group_id, now + TURN_S
            if now < self._until() <= now + TURN_S:  # what is beyond was read while it was written
                return Turn(group_id, Isolation.FEW)
            turn = Turn(group_id, Isolation.LAST, now + TURN_S)
            _UNTIL.pack_into(self._shared, 0, turn.until)
            return turn

    def end(self, turn: Turn, *, found: bool = True) -> None:
        """End a turn.

        Args:
            found: false if no suspect of its group was left, so that others' may be taken.
        """
        with self._lock:
            if turn.until and self._until() == turn.until:
                _UNTIL.pack_into(self._shared, 0, 0.0)
            if not found and turn.group_id == self._group_id and turn.most_isolation is not Isolation.NONE:
                self._group_until = -math.inf

    def _until(self) -> float:
        return float(_UNTIL.unpack_from(self._shared, 0)[0])
