"""Human-readable counts and time differences."""

from __future__ import annotations

from collections.abc import Iterable

_IRREGULAR = {"body": "bodies", "retry": "retries", "process": "processes", "is": "are", "was": "were", "has": "have"}


def counted(number: int, noun: str) -> str:
    """Format a number and its noun: ``1 message``, ``2 messages``."""
    return f"{number} {plural(number, noun)}"


def plural(number: int, noun: str) -> str:
    """Return a noun, or its verb, in the form that agrees with a number."""
    return noun if number == 1 else _IRREGULAR.get(noun, f"{noun}s")


def seconds_text(seconds: float, digits: int = 3) -> str:
    """Format a time difference with its sign, ``+0.250 s``; a difference that rounds to zero has no sign."""
    rounded = round(seconds, digits)
    return f"{rounded:+.{digits}f} s" if rounded else f"{0:.{digits}f} s"


class AtLeast(int):
    """Count that stopped at a limit: a number for sorting and JSON, ``10,000+`` as text."""

    def __str__(self) -> str:
        return f"{int(self):,}+"


class Estimate(int):
    """Count that was estimated from a sample: a number for sorting and JSON, ``~10,000`` as text."""

    def __str__(self) -> str:
        return f"~{int(self):,}"


def summed(numbers: Iterable[int]) -> int:
    """Return the sum of counts, which is :class:`AtLeast` if one of them is."""
    found = list(numbers)
    return AtLeast(sum(found)) if any(isinstance(number, AtLeast) for number in found) else sum(found)
