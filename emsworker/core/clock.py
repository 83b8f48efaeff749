"""The local clock: for measuring spans only; due times and leases in the store go by the server's clock."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


def ticks() -> float:
    """Seconds since some point, going on while the process is stopped and, on Linux, while the machine sleeps."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
