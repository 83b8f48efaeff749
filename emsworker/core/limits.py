"""Cluster-wide rate and concurrency limits of a group."""

from __future__ import annotations

import re
from dataclasses import dataclass

from emsworker.core.options import Check, option, problems_in, raise_problems, whole

_PER_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
_RATE = re.compile(r"(\d+(?:\.\d+)?)/([smh])")
_LEAST_PER_S, _MOST_PER_S = 1 / (366 * 86_400), 1e9
_SHOWN = 40  # characters of what is no rate
_SAVED_UP_S = 0.25  # how much unused rate may be saved up; any second starts at most 1.5 times the rate


def parse_rate(rate: str) -> float:
    """Parse ``100/s``, ``30/m`` or ``5/h`` into starts per second.

    Raises:
        ValueError: not a rate, or not from 1 in a year to a billion a second.
    """
    match = _RATE.fullmatch(rate.strip()) if isinstance(rate, str) else None
    per_s = float(match[1]) / _PER_S[match[2]] if match is not None else 0.0
    if not _LEAST_PER_S <= per_s <= _MOST_PER_S:
        shown = repr(rate) if len(repr(rate)) <= _SHOWN else f"{repr(rate)[:_SHOWN]}..."
        raise ValueError(f"{shown} is not a rate; write it like 100/s, 30/m or 5/h (to run nothing, pause the group)")
    return per_s


RATE = Check(parse_rate)
MOST_RUNNING = whole(1, 65535)


@dataclass(frozen=True)
class Limit:
    """Rate and concurrency limits of a group.

    Args:
        rate: the maximum rate of started messages, like ``100/s``, ``30/m`` or ``5/h``; ``None``: no limit.
        max_running: the maximum number of running messages, on all machines together; ``None``: no limit.
        max_running_per_key: of a fair group, the same for the messages of each key.

    Raises:
        ConfigError: naming every limit that is wrong.
    """

    rate: str | None = option(None, RATE)
    max_running: int | None = option(None, MOST_RUNNING)
    max_running_per_key: int | None = option(None, MOST_RUNNING)

    def __post_init__(self) -> None:
        raise_problems(problems_in(self))

    def __bool__(self) -> bool:
        return (self.rate, self.max_running, self.max_running_per_key) != (None, None, None)

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
            f"max-running-per-key {self.max_running_per_key}" if self.max_running_per_key else "",
        ]
        return ", ".join(filter(None, parts)) or "no limit"


@dataclass(frozen=True)
class Permit:
    """The answer to a request for permits.

    Attributes:
        granted: how many messages may be started.
        rated: True if they are to be started soon, because they count for this moment.
        wait_s: seconds after which to ask again if none was granted.
        paused: the tasks of the group that are paused, if they were asked for.
    """

    granted: int
    rated: bool
    wait_s: float
    paused: frozenset[str] = frozenset()
