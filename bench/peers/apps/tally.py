"""What was sent and what ran: a file that all processes map, with three numbers for each message."""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path

VARIABLE = "BENCH_TALLY"
_RECORD = struct.Struct("<qqq")  # how often it ran, when it was sent and when its first run began, in ns


class Tally:
    """The marks of messages 0, 1, 2 and so on.

    Args:
        path: the file, which exists.
    """

    def __init__(self, path: str | Path) -> None:
        with open(path, "r+b") as file:  # noqa: PTH123  # once
            self._map = mmap.mmap(file.fileno(), 0)

    @staticmethod
    def create(path: Path, count: int) -> Tally:
        """A new file, with no message sent."""
        path.write_bytes(bytes(_RECORD.size * count))
        return Tally(path)

    def sent(self, number: int) -> None:
        """A message is about to be sent."""
        _RECORD.pack_into(self._map, _RECORD.size * number, 0, time.time_ns(), 0)

    def ran(self, number: int) -> None:
        """A handler was entered."""
        now = time.time_ns()
        runs, sent, entered = _RECORD.unpack_from(self._map, _RECORD.size * number)
        _RECORD.pack_into(self._map, _RECORD.size * number, runs + 1, sent, entered or now)

    def records(self) -> list[tuple[int, int, int]]:
        """Runs, time sent and time entered (0 for not yet) of every message, in order."""
        return list(_RECORD.iter_unpack(self._map[:]))

    def missing(self) -> int:
        """How many messages have not run."""
        return sum(1 for runs, _, _ in self.records() if runs == 0)


_tallies: list[Tally] = []


def ran(number: int) -> None:
    """What every task does: leave a mark in the file that the environment names."""
    if not _tallies:
        _tallies.append(Tally(os.environ[VARIABLE]))
    _tallies[0].ran(number)
