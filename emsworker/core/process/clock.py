"""Local clock, only for measuring time spans; due times and leases in the store use the server's clock."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


def ticks() -> float:
    """Seconds since an arbitrary point, also counted while the process is stopped and, on Linux, the machine sleeps."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
