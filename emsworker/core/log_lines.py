"""Log of one attempt: the last lines of its handler, bounded in number and length."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

MOST_CHARACTERS = 16 << 10


@dataclass(frozen=True, slots=True)
class AttemptLog:
    """Lines that the handler of an attempt logged.

    Attributes:
        attempt: the number of the attempt.
        lines: the last ones; a record may have further lines, which are indented.
        left_out: how many records before them are not kept.
    """

    attempt: int
    lines: str
    left_out: int


@dataclass(slots=True)
class LineBuffer:
    """The last lines of an attempt that runs.

    Attributes:
        most: how many records are kept.
        ended: nothing more comes.
        changed: something came since it was read last.
    """

    most: int
    ended: bool = False
    changed: bool = False
    _lines: deque[str] = field(default_factory=deque)
    _length: int = 0
    _left_out: int = 0

    def add(self, line: str) -> None:
        """Add a record; the oldest ones give way."""
        self._lines.append(line)
        self._length += len(line) + 1
        self.changed = True
        while len(self._lines) > self.most or self._length > MOST_CHARACTERS:
            self._length -= len(self._lines.popleft()) + 1
            self._left_out += 1

    def log(self, attempt: int) -> AttemptLog:
        """Return what there is, as the log of an attempt of this number."""
        self.changed = False
        return AttemptLog(attempt, "\n".join(self._lines), self._left_out)
