"""Cluster-wide rate and concurrency limits of a group."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PER_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
_RATE = re.compile(r"(\d+(?:\.\d+)?)/([smh])")
_SAVED_UP_S = 0.25  # how much unused rate may be saved up; any second starts at most 1.5 times the rate
MOST_RUNNING = 65535


def parse_rate(text: str) -> float:
    """Parse ``100/s``, ``30/m`` or ``5/h`` into starts per second.

    Raises:
        ValueError: not a rate, or 0.
    """
    match = _RATE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"{text!r} is no rate; write it like 100/s, 30/m or 5/h (to run nothing, pause the group)")
    return float(match[1]) / _PER_S[match[2]]


@dataclass(frozen=True)
class Limit:
    """Rate and concurrency limits of a group.

    Args:
        rate: the maximum rate of started messages, like ``100/s``, ``30/m`` or ``5/h``; ``None``: no limit.
        max_running: the maximum number of running messages, on all machines together; ``None``: no limit.

    Raises:
        ValueError: a limit is not valid.
    """

    rate: str | None = None
    max_running: int | None = None

    def __post_init__(self) -> None:
        if self.rate is not None:
            parse_rate(self.rate)
        most = self.max_running
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= MOST_RUNNING):
            raise ValueError(f"max_running = {most!r}: must be a number from 1 to {MOST_RUNNING}")

    def __bool__(self) -> bool:
        return self.rate is not None or self.max_running is not None

    @property
    def per_s(self) -> float | None:
        """Starts per second; ``None`` if there is no limit."""
        return None if self.rate is None else parse_rate(self.rate)

    @property
    def capacity(self) -> float:
        """Maximum number of starts that may be saved up."""
        return max(1.0, (self.per_s or 0.0) * _SAVED_UP_S)

    def __str__(self) -> str:
        parts = [
            f"rate {self.rate}" if self.rate else "",
            f"max-running {self.max_running}" if self.max_running else "",
        ]
        return ", ".join(filter(None, parts)) or "no limit"
