"""A bound for label sets whose values come from messages."""

from __future__ import annotations

OTHER = "(other)"
_LONGEST = 190


class BoundedNames:
    """Lets a number of different names through; what comes after them, is too long or not printable is ``(other)``.

    Whoever sends messages chooses the names of tasks in them, and each new label set of a metric costs memory for ever,
    here and in what reads the metrics.

    Args:
        most: the number of names.
    """

    def __init__(self, most: int = 1000) -> None:
        self._most = most
        self._names: set[str] = set()

    def __call__(self, name: str) -> str:
        """Return the name, or ``(other)``."""
        if name in self._names:
            return name
        if len(name) > _LONGEST or not name.isprintable() or len(self._names) >= self._most:
            return OTHER
        self._names.add(name)
        return name
