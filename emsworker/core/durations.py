"""Parsing and formatting of durations: ``500ms``, ``10s``, ``1m``, ``2h``, ``7d``."""

from __future__ import annotations

import re
from decimal import Decimal

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# Due times must stay within the range of DATETIME.
LONGEST_S = 100 * 366 * 86400.0
_PATTERN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")


def parse_duration(text: str | float) -> float:
    """Turn a duration into seconds.

    Args:
        text: a number of seconds, or a number with a unit (``ms s m h d``).

    Raises:
        ValueError: not a duration, negative, or longer than 100 years.
    """
    if isinstance(text, int | float) and not isinstance(text, bool):
        return _checked(text, text)
    match = _PATTERN.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write it like 500ms, 10s, 5m, 2h or 7d")
    return _checked(float(match[1]) * _UNITS[match[2] or "s"], text)


def _checked(seconds: float, text: str | float) -> float:
    if not 0 <= seconds <= LONGEST_S:
        raise ValueError(f"{text!r} is out of range; a duration lies between 0 and 100 years")
    return float(seconds)


def format_duration(seconds: float) -> str:
    """Format a duration in a short form that :func:`parse_duration` reads back exactly."""
    for unit in ("d", "h", "m", "s"):
        if seconds >= _UNITS[unit] and seconds % _UNITS[unit] == 0:
            return f"{_plain(seconds / _UNITS[unit])}{unit}"
    in_ms = f"{_plain(seconds * 1000)}ms"
    return in_ms if seconds < 1 and parse_duration(in_ms) == seconds else f"{_plain(seconds)}s"


def span_text(seconds: float) -> str:
    """Format a measured time: ``0.31 ms``, ``12.5 ms``, ``1.24 s``, ``2 m 5 s``, ``3 h 2 m``, ``4 d 1 h``."""
    if seconds < 0.9995:
        return f"{_three_digits(seconds * 1000)} ms"
    if seconds < 59.95:
        return f"{_three_digits(seconds)} s"
    whole = round(seconds)
    for name, size, below, below_size in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // below_size
            return f"{whole // size} {name} {rest} {below}" if rest else f"{whole // size} {name}"
    return f"{whole} s"


def _three_digits(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}" if number >= 1 else f"{number:.2g}"


def _plain(number: float) -> str:
    """Format a number with all its digits, without an exponent."""
    return f"{Decimal(repr(number)):f}".removesuffix(".0")
