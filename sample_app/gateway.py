"""A flaky service outside of ours: whether a call fails is drawn from a seed, so that a run can be foretold."""

from __future__ import annotations

from zlib import crc32

_NEVER_WORKS = 0.03
_FAILS_ONCE = 0.3
_HICCUPS = 0.02


class GatewayDown(Exception):
    """The service does not answer this time."""


def notify(seed: int, flight: str, attempt: int) -> None:
    """Tell the airline's desk that a flight is late.

    Args:
        seed: of all draws.
        flight: the flight's id.
        attempt: 1 for the first.

    Raises:
        GatewayDown: not this time.
    """
    if fails(seed, flight, attempt):
        raise GatewayDown(f"no answer for flight {flight} at attempt {attempt}")


def fails(seed: int, flight: str, attempt: int) -> bool:
    """Whether this very attempt fails; for a few flights each one does."""
    return _draw(seed, flight, 0) < _NEVER_WORKS or _draw(seed, flight, attempt) < _FAILS_ONCE


def hiccup(seed: int, flight: str, attempt: int) -> None:
    """A disturbance that is over at the next attempt.

    Raises:
        GatewayDown: at the first attempt, for one flight in fifty.
    """
    if attempt == 1 and _draw(seed, flight, -1) < _HICCUPS:
        raise GatewayDown(f"disturbed at flight {flight}")


def _draw(seed: int, flight: str, number: int) -> float:
    return crc32(f"{seed}/{flight}/{number}".encode()) / 2**32
