"""A range of offsets of one partition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets of one partition of a topic: ``start`` is included and ``end`` is not, as in Python's ``range``.

    Whatever reads, copies or deletes by offsets takes one. Only rows of claims count otherwise: their ``lo`` and ``hi``
    are the first and the last offset.
    """

    topic_id: int
    partition: int
    start: int
    end: int

    def __len__(self) -> int:
        return max(0, self.end - self.start)

    def __str__(self) -> str:
        return f"offsets {self.start} to {self.end - 1}"

    @property
    def args(self) -> dict[str, int]:
        """The range as parameters of a statement."""
        return {"topic_id": self.topic_id, "partition": self.partition, "start": self.start, "end": self.end}

    def part(self, start: int, end: int) -> OffsetRange:
        """Return the part between two offsets; it may be empty, but is never outside of the range."""
        start = min(max(start, self.start), self.end)
        return replace(self, start=start, end=max(start, min(end, self.end)))

    def steps(self, size: int, *, newest: bool = False) -> Iterator[OffsetRange]:
        """Yield parts of at most ``size`` offsets, with ``newest`` from the end to the beginning."""
        if newest:
            return (self.part(end - size, end) for end in range(self.end, self.start, -size))
        return (self.part(start, start + size) for start in range(self.start, self.end, size))

    def cut(self, parts: int) -> list[OffsetRange]:
        """Cut into this many parts of nearly equal length."""
        edges = [self.start + len(self) * number // parts for number in range(parts + 1)]
        return [self.part(start, end) for start, end in pairwise(edges)]
