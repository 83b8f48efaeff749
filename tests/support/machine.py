"""A clock for tests: seconds of the machine that a test would have to itself.

While more tasks want to run than there are processors, each gets a share of one, and this clock goes slower by that
share. On a quiet machine it goes as any other. A deadline or a bound by it is as strict as ever for the code, and does
not tell of what else the machine does.
"""

from __future__ import annotations

import bisect
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

_SAMPLE_S = 0.05
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
    """

    def __init__(self, now: Callable[[], float] = time.monotonic, share: Callable[[], float] = share) -> None:
        self._now, self._share = now, share
        self._mutex = threading.Lock()
        self._moments = [now()]
        self._sums = [self._moments[0]]
        self._last = share()

    def sample(self) -> float:
        """Look at the machine; returns the time until now."""
        with self._mutex:
            now, found = self._now(), self._share()
            spent = (now - self._moments[-1]) * (self._last + found) / 2
            self._moments.append(now)
            self._sums.append(self._sums[-1] + spent)
            self._last = found
            return self._sums[-1]

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


def _keep_sampling(clock: MachineClock) -> None:
    while True:
        clock.sample()
        time.sleep(_SAMPLE_S)
