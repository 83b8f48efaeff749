"""Values that are the same for every visitor, read once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

from emsworker.extending.processes import Lock, ticks

T = TypeVar("T")
_MOST_KEPT = 500
_REST = 10.0  # times that reading took: a value costs the server at most a tenth of the time
_LONGEST_S = 60.0


@dataclass(frozen=True)
class _Kept:
    value: Any
    read: float
    at: datetime
    took_s: float


class SharedCache:
    """Cache of values with the time at which they were read.

    Of several threads that want a value that has become too old, one reads it and the others wait for it: the number
    of viewers does not change what the server has to do.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: dict[Hashable, _Kept] = {}
        self._locks: dict[Hashable, Any] = {}

    def get(self, name: Hashable, age_s: float, read: Callable[[], T]) -> T:
        """Return the value of that name, read at most ``age_s`` seconds ago; longer if reading it takes long.

        What 20,000 groups cost to read grows with them; the share of the time that the server spends on it does not.

        Raises:
            whatever ``read`` raises; nothing is kept then.
        """
        with self._lock:
            one = self._locks.setdefault(name, Lock())
        with one:
            kept = self._kept.get(name)
            if kept is None or ticks() - kept.read > max(age_s, min(_REST * kept.took_s, _LONGEST_S)):
                began = ticks()
                value = read()
                kept = _Kept(value, ticks(), datetime.now(UTC), ticks() - began)
                with self._lock:
                    self._trim()
                    self._kept[name] = kept
        return cast("T", kept.value)

    def at(self, name: Hashable) -> datetime | None:
        """Return the time at which a value was read."""
        kept = self._kept.get(name)
        return kept.at if kept else None

    def clear(self) -> None:
        """Forget all values: something was changed."""
        with self._lock:
            self._kept.clear()

    def _trim(self) -> None:
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
            self._locks.clear()
