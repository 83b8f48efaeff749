"""Retry ladder: the delay before a failed message runs again, and the decision that it is dead.

A decision is a value, as in Procrastinate and River: nothing here touches a database.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from emsworker.core.counted import counted
from emsworker.core.durations import format_duration, parse_duration
from emsworker.core.errors import (
    ContentRefused,
    DecodeError,
    Ignore,
    Reject,
    Retry,
    RunCancelled,
    TransactionEnded,
    text_of,
)

DEFAULT_LADDER = "10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
DEFAULT_MAX_ATTEMPTS = 16

# A retry cannot succeed after these errors: the message itself is at fault.
_HOPELESS = (Reject, ContentRefused, DecodeError, TransactionEnded)


@dataclass(frozen=True)
class RetryIn:
    """Decision to run the message again after ``delay_s`` seconds."""

    delay_s: float

    def __str__(self) -> str:
        return f"again in {self.delay_s:.1f} s"


@dataclass(frozen=True)
class Dead:
    """Decision to move the message to the dead letters."""

    reason: str

    def __str__(self) -> str:
        return f"dead: {self.reason}"


@dataclass(frozen=True)
class Done:
    """Decision to count the message as done although the handler raised."""

    def __str__(self) -> str:
        return "done"


@dataclass(frozen=True)
class Dropped:
    """Decision to drop a broadcast message, which is neither retried nor kept as a dead letter."""


Decision = RetryIn | Dead | Done | Dropped


@dataclass(frozen=True)
class Ladder:
    """Delays between the attempts at a message.

    Args:
        delays_s: seconds before the 2nd, 3rd, ... attempt; the last one repeats.
        max_attempts: the maximum number of runs of a message.
        jitter: the largest share by which a delay is lengthened at random, so that simultaneous retries spread out.
    """

    delays_s: tuple[float, ...]
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    jitter: float = 0.1

    @classmethod
    def parse(
        cls, text: str | Sequence[float], max_attempts: int = DEFAULT_MAX_ATTEMPTS, jitter: float = 0.1
    ) -> Ladder:
        """Parse rungs such as ``"10s 30s 1m"``.

        Raises:
            ValueError: a rung is not a duration, there is no rung, or a number is out of range.
        """
        rungs = text.replace(",", " ").split() if isinstance(text, str) else text
        if not isinstance(rungs, Sequence):
            raise ValueError(f"{text!r} is not a ladder; write it like '10s 30s 1m'")
        delays = tuple(parse_duration(rung) for rung in rungs)
        if not delays:
            raise ValueError("a ladder needs at least one rung, like '10s 30s 1m'")
        if max_attempts < 1:
            raise ValueError(f"max_attempts is {max_attempts}; it must be at least 1")
        if not 0 <= jitter <= 1:
            raise ValueError(f"jitter is {jitter}; it must lie between 0 and 1")
        return cls(delays, max_attempts, jitter)

    def __str__(self) -> str:
        return " ".join(format_duration(delay) for delay in self.delays_s)

    def next(self, attempt: int, error: BaseException, rng: Callable[[], float] = random.random) -> Decision:
        """Return the decision for a message whose ``attempt``-th run (1, 2, ...) ended in ``error``."""
        if isinstance(error, (Ignore, RunCancelled)):
            return Done()
        if isinstance(error, _HOPELESS):
            return Dead(text_of(error))
        if attempt >= self.max_attempts:
            return Dead(f"used up its {counted(self.max_attempts, 'attempt')}")
        if isinstance(error, Retry) and error.countdown_s is not None:
            return RetryIn(error.countdown_s)
        rung = self.delays_s[min(attempt, len(self.delays_s)) - 1]
        return RetryIn(rung * (1 + self.jitter * rng()))
