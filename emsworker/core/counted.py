"""Counts and spans as people read them."""

from __future__ import annotations

_IRREGULAR = {"body": "bodies", "retry": "retries", "process": "processes", "is": "are", "was": "were", "has": "have"}


def counted(number: int, noun: str) -> str:
    """A number and its noun: ``1 message``, ``2 messages``."""
    return f"{number} {plural(number, noun)}"


def plural(number: int, noun: str) -> str:
    """A noun, or the verb that goes with it, as it stands beside a number."""
    return noun if number == 1 else _IRREGULAR.get(noun, f"{noun}s")


def seconds_text(seconds: float, digits: int = 3) -> str:
    """A difference of times with its sign, ``+0.250 s``; one that rounds to nothing has none."""
    rounded = round(seconds, digits)
    return f"{rounded:+.{digits}f} s" if rounded else f"{0:.{digits}f} s"
