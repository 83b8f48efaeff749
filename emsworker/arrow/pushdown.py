"""Pushdown of comparisons: rows that they do not accept are not read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from emsworker.arrow import scan
from emsworker.arrow.columns import COLUMNS, unknown_column
from emsworker.arrow.planning import Slice
from emsworker.extending.database import Session

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER = 1 << 62
_LAST_US = 253_402_300_799_999_999  # the end of the year 9999, where DATETIME ends
# Offsets and insertion times increase together, except if a producer allocated an offset and filled it late.
_SLACK_US = 600 * 1_000_000


@dataclass(frozen=True)
class Comparison:
    """Comparison of a column with a constant; all comparisons of a read must hold.

    Attributes:
        column: the name of the column.
        operator: ``==``, ``<``, ``<=``, ``>``, ``>=`` or ``in``.
        value: the constant; for ``in`` a collection of them.
    """

    column: str
    operator: str
    value: Any


def find_fault(one: Comparison, dataset: str) -> str | None:
    """Return why a comparison cannot be pushed; ``None`` if it can."""
    if one.column not in COLUMNS[dataset]:
        return unknown_column(dataset)
    numbered = "lo" if dataset == "claims" else "offset"
    kinds: dict[str, tuple[type, str]] = {
        "topic": (str, "a string"),
        "group": (str, "a string"),
        "partition": (int, "a whole number"),
        numbered: (int, "a whole number"),
        "timestamp": (datetime, "a datetime"),
    }
    if one.column not in kinds:
        usable = ", ".join(name for name in kinds if name in COLUMNS[dataset])
        return f"the server compares {usable}; filter by other columns after reading"
    kind, text = kinds[one.column]
    operators = ("==", "in") if one.column in ("topic", "group", "partition") else ("==", "<", "<=", ">", ">=")
    if one.operator not in operators:
        return f"its operator must be one of {', '.join(operators)}"
    if one.operator == "in" and not isinstance(one.value, list | tuple | set | frozenset):
        return "its value must be a list"
    values = one.value if one.operator == "in" else [one.value]
    if all(isinstance(value, kind) and not isinstance(value, bool) and _is_exact(value) for value in values):
        return None
    return f"its value must be {text}"


def _is_exact(value: Any) -> bool:
    return not isinstance(value, datetime) or value.tzinfo is not None


class Pushed:
    """The comparisons of a read: bounds on offsets and times, and sets of names."""

    def __init__(self) -> None:
        self._names: dict[str, set[Any]] = {}
        self._offsets = (0, _NEVER)
        self._times = (0, _LAST_US)

    def take(self, one: Comparison, dataset: str) -> bool:
        """Take a comparison; return whether the store applies it exactly."""
        name = one.column
        if name in ("topic", "partition", "group") and one.operator in ("==", "in"):
            wanted = {one.value} if one.operator == "==" else set(one.value)
            self._names[name] = self._names.get(name, wanted) & wanted
            return True
        if name == ("lo" if dataset == "claims" else "offset"):
            found = _bounds(one, int)
            if found is not None:
                self._offsets = _both(self._offsets, found)
            return found is not None
        if name == "timestamp":
            found = _bounds(one, _microseconds)
            if found is not None:
                self._times = _both(self._times, found)
            return found is not None
        return False

    @property
    def between(self) -> tuple[int, int] | None:
        """The times between which the filters accept messages, or ``None`` for any time."""
        return None if self._times == (0, _LAST_US) else self._times

    def _wants(self, one: Slice) -> bool:
        """Return whether the filters accept any row of a slice."""
        return all(one.constants[name] in wanted for name, wanted in self._names.items())

    def narrow(self, session: Session, one: Slice) -> Slice:
        """Return the part of a slice that can have accepted rows; it may be empty."""
        offsets = one.offsets.part(*(self._offsets if self._wants(one) else (0, 0)))
        if self.between is not None and one.group is None and offsets:
            start = scan.find_time(session, offsets, max(0, self._times[0] - _SLACK_US))
            end = scan.find_time(session, offsets.part(start, offsets.end), self._times[1] + _SLACK_US)
            offsets = offsets.part(start, end)
        return replace(one, offsets=offsets)


def _bounds(one: Comparison, number: Callable[[Any], int]) -> tuple[int, int] | None:
    """Return the half-open interval of a comparison, or ``None`` if it has none."""
    if one.operator not in ("==", "<", "<=", ">", ">="):
        return None
    value = number(one.value)
    if one.operator == "==":
        return value, value + 1
    if one.operator in (">", ">="):
        return value + (one.operator == ">"), _NEVER
    return 0, value + (one.operator == "<=")


def _both(first: tuple[int, int], second: tuple[int, int]) -> tuple[int, int]:
    return max(first[0], second[0]), max(0, min(first[1], second[1]))


def _microseconds(value: datetime) -> int:
    """Return microseconds since 1970, at most to the end of the year 9999; without a zone it is in this process's."""
    # In UTC a time may lie outside of the years 1 to 9999, which astimezone() refuses, and a difference does not.
    since = (value if value.tzinfo is not None else value.astimezone()) - _EPOCH
    return min((since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds, _LAST_US)
