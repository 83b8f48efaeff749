"""Is a series flat? A slope and a shift that bear noise, spikes and gaps, each with a confidence interval.

Samples of one moment are noisy and depend on their neighbours, so the series is first cut into bins, of which the
medians count. The *slope* is Theil and Sen's: the median of the slopes of all pairs, with Sen's interval from Kendall's
statistic. The *shift* is Hodges and Lehmann's: the median of all differences between the last third and the first,
with the interval of Mann and Whitney's test. A series is not flat if it is certain, by the lower end of an interval,
that it has risen by more than is tolerated: gradually, or in a step. What falls is no leak.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

_BINS, _LEAST = 40, 12
_Z = 3.0  # of one side: 1 in 700, for some 80 series are judged at once


@dataclass(frozen=True)
class Trend:
    """What became of a series.

    Attributes:
        first, last: medians of its first and its last third.
        per_hour: the slope; lowest_per_hour: the lower end of its interval.
        tolerated: how much it may rise over the whole time.
        verdict: ``flat``, ``grows``, ``stepped up``, or ``too short``.
    """

    first: float
    last: float
    per_hour: float
    lowest_per_hour: float
    tolerated: float
    verdict: str

    @property
    def flat(self) -> bool:
        """Whether it is as it must be."""
        return self.verdict == "flat"


def judge(times_s: Sequence[float], values: Sequence[float], tolerated: float, relative: float = 0.0) -> Trend:
    """Judge a series.

    Args:
        times_s: of the samples, rising.
        values: of the samples.
        tolerated: by how much it may rise; relative: the same as a share of its first third, whichever is more.
    """
    if len(values) < _LEAST or times_s[-1] <= times_s[0]:
        return Trend(math.nan, math.nan, math.nan, math.nan, tolerated, "too short")
    times, levels = _bins(times_s), _bins(values)
    third = len(levels) // 3
    first, last = median(levels[:third]), median(levels[-third:])
    tolerated = max(tolerated, relative * abs(first))
    slope, lowest = _slope(times, levels)
    span = times[-1] - times[0]
    verdict = "flat"
    if _least_shift(levels[:third], levels[-third:]) > tolerated:
        verdict = "stepped up"
    if lowest * span > tolerated:
        verdict = "grows"
    return Trend(first, last, slope * 3600, lowest * 3600, tolerated, verdict)


def _bins(values: Sequence[float]) -> list[float]:
    count = min(_BINS, max(_LEAST, len(values) // 3))
    edges = [round(place * len(values) / count) for place in range(count + 1)]
    return [median(values[begin:end]) for begin, end in pairwise(edges)]


def _slope(times: list[float], values: list[float]) -> tuple[float, float]:
    """The slope, and the lower end of its interval."""
    count = len(values)
    slopes = sorted(
        (values[right] - values[left]) / (times[right] - times[left])
        for left in range(count)
        for right in range(left + 1, count)
        if times[right] > times[left]  # two samples may be of one moment
    )
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    return median(slopes), slopes[max(0, math.floor((len(slopes) - _Z * deviation) / 2))]


def _least_shift(before: list[float], after: list[float]) -> float:
    """By how much the values have risen at least."""
    differences = sorted(late - early for early in before for late in after)
    n, m = len(before), len(after)
    place = n * m / 2 - _Z * math.sqrt(n * m * (n + m + 1) / 12)
    return differences[max(0, math.floor(place))]
