"""Durations as people write them: ``500ms``, ``10s``, ``1m``, ``2h``, ``7d``."""

from __future__ import annotations

import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PATTERN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")


def parse_duration(text: str | float) -> float:
    """Turn a duration into seconds.

    Args:
        text: a number of seconds, or a number with a unit (``ms s m h d``).

    Raises:
        ValueError: it is neither, or negative.
    """
    match = _PATTERN.fullmatch(str(text).strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write it like 500ms, 10s, 5m, 2h or 7d")
    return float(match[1]) * _UNITS[match[2] or "s"]


def format_duration(seconds: float) -> str:
    """The shortest way to write a duration that :func:`parse_duration` reads back."""
    for unit in ("d", "h", "m", "s"):
        if seconds >= _UNITS[unit] and seconds % _UNITS[unit] == 0:
            return f"{seconds / _UNITS[unit]:g}{unit}"
    return f"{seconds * 1000:g}ms" if seconds < 1 else f"{seconds:g}s"
