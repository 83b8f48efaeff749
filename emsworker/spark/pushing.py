"""Filter pushdown: filters that the store applies, so that unwanted rows are not read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from emsworker.spark.planning import Slice
from emsworker.store.engine.session import Session
from emsworker.store.stream import scan

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER_NULL = ("topic", "partition", "group", "offset", "lo", "timestamp")
_NEVER = 1 << 62
_LAST_US = 253_402_300_799_999_999  # the end of the year 9999, where DATETIME ends
# Offsets and insertion times increase together, except if a producer allocated an offset and filled it late.
_SLACK_US = 600 * 1_000_000


class Pushed:
    """Filters taken from Spark: bounds on offsets and times, and sets of names."""

    def __init__(self) -> None:
        self._names: dict[str, set[Any]] = {}
        self._offsets = (0, _NEVER)
        self._times = (0, _LAST_US)

    def take(self, one: Filter, dataset: str) -> bool:
        """Take a filter; return whether the store applies it exactly."""
        column: tuple[str, ...] = getattr(one, "attribute", ())
        name = ".".join(column)
        if isinstance(one, IsNotNull):
            return name in _NEVER_NULL
        if name in ("topic", "partition", "group") and isinstance(one, EqualTo | In):
            wanted = {one.value} if isinstance(one, EqualTo) else set(one.value)
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

    def wants(self, one: Slice) -> bool:
        """Return whether the filters accept any row of a slice."""
        return all(one.constants[name] in wanted for name, wanted in self._names.items())

    def narrow(self, session: Session, one: Slice) -> Slice:
        """Return the part of a slice that can have accepted rows."""
        offsets = one.offsets.part(*self._offsets)
        if self.between is not None and one.group is None and offsets:
            start = scan.find_time(session, offsets, max(0, self._times[0] - _SLACK_US))
            end = scan.find_time(session, offsets.part(start, offsets.end), self._times[1] + _SLACK_US)
            offsets = offsets.part(start, end)
        return replace(one, offsets=offsets)


def _bounds(one: Filter, number: Callable[[Any], int]) -> tuple[int, int] | None:
    """Return the half-open interval of a comparison, or ``None`` if the filter is not a comparison."""
    if not isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return None
    value = number(one.value)
    if isinstance(one, EqualTo):
        return value, value + 1
    if isinstance(one, GreaterThan | GreaterThanOrEqual):
        return value + isinstance(one, GreaterThan), _NEVER
    return 0, value + isinstance(one, LessThanOrEqual)


def _both(first: tuple[int, int], second: tuple[int, int]) -> tuple[int, int]:
    return max(first[0], second[0]), max(0, min(first[1], second[1]))


def _microseconds(value: datetime) -> int:
    """Return microseconds since 1970; a Spark timestamp without a zone is in that of the Python worker."""
    since = value.astimezone(UTC) - _EPOCH
    return (since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds
