"""A clock for tests: seconds of the machine that a test would have to itself.

While more tasks want to run than there are processors, each gets a share of one, and this clock goes slower by that
share. On a quiet machine it goes as any other. A deadline or a bound by it is as strict as ever for the code, and does
not tell of what else the machine does. While the whole machine stalls (a virtual one whose host has no time for it), the
clock stands still: nobody's deadline passes then.
"""

from __future__ import annotations

import bisect
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

_SAMPLE_S = 0.05
_GAP_S = 1.0  # between two samples; in a longer one, what this process has not computed was a stall of the machine
_LEAST = 0.05  # so that a test that hangs comes to its end


def share() -> float:
    """The part of a processor that a task gets just now; 1.0 where the system does not tell."""
    try:
        wanting = int(Path("/proc/loadavg").read_text().split()[3].split("/")[0])
    except (OSError, ValueError, IndexError):
        return 1.0
    return max(_LEAST, min(1.0, (os.cpu_count() or 1) / max(1, wanting)))


class MachineClock:
    """Sums up shares, at each question and many times a second.

    Args:
        now: seconds of any other clock.
        share: see :func:`share`.
        computed: seconds of processors that this process has used.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        share: Callable[[], float] = share,
        computed: Callable[[], float] = time.process_time,
    ) -> None:
        self._now, self._share, self._computed = now, share, computed
        self._mutex = threading.Lock()
        self._moments = [now()]
        self._sums = [self._moments[0]]
        self._last, self._computed_s = share(), computed()

    def sample(self) -> float:
        """Look at the machine; returns the time until now."""
        with self._mutex:
            now, found = self._now(), self._share()
            spent = self._passed(now - self._moments[-1]) * (self._last + found) / 2
            self._moments.append(now)
            self._sums.append(self._sums[-1] + spent)
            self._last = found
            return self._sums[-1]

    def _passed(self, gap_s: float) -> float:
        """Return the seconds since the last sample, without those for which the machine stood still."""
        before, self._computed_s = self._computed_s, self._computed()
        return gap_s if gap_s <= _GAP_S else min(gap_s, _SAMPLE_S + self._computed_s - before)

    def at(self, moment: float) -> float:
        """The time at a moment of the other clock; before the first sample both are the same."""
        self.sample()
        with self._mutex:
            right = bisect.bisect_left(self._moments, moment)
            if right == 0:
                return moment
            if right == len(self._moments):
                return self._sums[-1] + moment - self._moments[-1]
            (a, b), (x, y) = self._moments[right - 1 : right + 1], self._sums[right - 1 : right + 1]
            return x + (y - x) * (moment - a) / (b - a)


_clock: MachineClock | None = None


def machine_s(moment: float | None = None) -> float:
    """The time now, or at a moment of ``time.monotonic()``; only differences mean something."""
    global _clock
    if _clock is None:
        _clock = MachineClock()
        threading.Thread(target=_keep_sampling, args=(_clock,), name="machine-clock", daemon=True).start()
    return _clock.sample() if moment is None else _clock.at(moment)


def _forget() -> None:
    """In a forked child, where nobody samples, the next question makes a clock."""
    global _clock
    _clock = None


os.register_at_fork(after_in_child=_forget)


def _keep_sampling(clock: MachineClock) -> None:
    while True:
        clock.sample()
        time.sleep(_SAMPLE_S)
