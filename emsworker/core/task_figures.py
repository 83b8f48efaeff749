"""Figures of a task: counts of its runs, their processor time, and histograms of how long messages waited and ran."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

# Each bucket is half as wide again, nearly: 1 ms, 1.4 ms, 2 ms ... 3.2 hours. The last one has no end.
BOUNDS_S = tuple(0.001 * 2 ** (number / 2) for number in range(48))
_MIDDLE = 2**0.25


def bucket_of(seconds: float) -> int:
    """Return the number of the bucket of a span."""
    return bisect_left(BOUNDS_S, seconds, 0, len(BOUNDS_S) - 1)


def percentile(buckets: Mapping[int, int], share: float) -> float | None:
    """Return the span, within a fifth, below which a share of some spans lies; ``None`` if there are none.

    Args:
        buckets: how many of them each bucket has.
        share: 0.95 for the 95th percentile.
    """
    left = math.ceil(share * sum(buckets.values()))
    for number in sorted(buckets):
        left -= buckets[number]
        if left <= 0 and buckets[number]:
            return BOUNDS_S[number] / (_MIDDLE if number else 1)
    return None


@dataclass(slots=True)
class TaskFigures:
    """Results of the runs of a task.

    Attributes:
        runs, failed: runs that ended, and those that ended in an error; retried, dead: what followed.
        cpu_us: processor time of handlers in microseconds, of ``cpu_runs`` runs; that of coroutines is not known.
        error: the last error in one line.
        waits: how long messages had waited when they ran first, by bucket; spans: how long runs took.
    """

    runs: int = 0
    failed: int = 0
    retried: int = 0
    dead: int = 0
    cpu_us: int = 0
    cpu_runs: int = 0
    error: str | None = None
    waits: Counter[int] = field(default_factory=Counter)
    spans: Counter[int] = field(default_factory=Counter)

    def add(self, other: TaskFigures) -> None:
        """Add the figures of later runs."""
        for name in ("runs", "failed", "retried", "dead", "cpu_us", "cpu_runs"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.error = other.error or self.error
        self.waits.update(other.waits)
        self.spans.update(other.spans)
