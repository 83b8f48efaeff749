"""Bounds of a predicate on plain columns: the part that a statement with parameters can evaluate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

T = TypeVar("T")

_LAST_OFFSET = (1 << 63) - 1
_FIRST_TIME, _LAST_TIME = datetime(1971, 1, 1, tzinfo=UTC), datetime(9999, 12, 1, tzinfo=UTC)
_SETS = {"key": "keys", "tag": "tags", "id": "ids", "partition": "partitions"}


@dataclass(frozen=True)
class Bounds:
    """Necessary conditions of a predicate: every chosen message fulfils them, but may have to fulfil more.

    Attributes:
        lo, hi: first and last offset.
        born_from, born_to: the earliest and the latest time.
        keys, tags, ids, partitions: the allowed values; ``None`` for any.
        key_prefix: the beginning of the key.
    """

    lo: int = 1
    hi: int = _LAST_OFFSET
    born_from: datetime = _FIRST_TIME
    born_to: datetime = _LAST_TIME
    keys: frozenset[bytes] | None = None
    tags: frozenset[bytes] | None = None
    ids: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    key_prefix: bytes = b""

    @classmethod
    def of(cls, name: str, op: str, values: Sequence[Any]) -> Bounds:
        """Return the bounds of ``name op value``; with several values, one of them must be equal."""
        if name in _SETS and op == "=":
            raw = [_encoded(value) if name in ("key", "tag") else value for value in values]
            return cls(**{_SETS[name]: frozenset(raw)})  # type: ignore[arg-type]
        if name == "key" and op == "prefix":
            return cls(key_prefix=_encoded(values[0]))
        if name in ("offset", "born_at") and op != "<>":
            low, high = ("lo", "hi") if name == "offset" else ("born_from", "born_to")
            found = {low: min(values)} if op in ("=", ">", ">=") else {}
            found |= {high: max(values)} if op in ("=", "<", "<=") else {}
            return cls(**found)
        return cls()

    def __and__(self, other: Bounds) -> Bounds:
        return Bounds(
            max(self.lo, other.lo),
            min(self.hi, other.hi),
            max(self.born_from, other.born_from),
            min(self.born_to, other.born_to),
            _both(self.keys, other.keys),
            _both(self.tags, other.tags),
            _both(self.ids, other.ids),
            _both(self.partitions, other.partitions),
            max(self.key_prefix, other.key_prefix, key=len),
        )

    @property
    def impossible(self) -> bool:
        """True if no message can fulfil them."""
        sets = (self.keys, self.tags, self.ids, self.partitions)
        return self.lo > self.hi or self.born_from > self.born_to or any(one is not None and not one for one in sets)

    @property
    def bounds_time(self) -> bool:
        """True if there is an earliest or latest time."""
        return self.born_from > _FIRST_TIME or self.born_to < _LAST_TIME

    @property
    def args(self) -> dict[str, Any]:
        """Parameters of a statement that reads only what fulfils the bounds, without those for offsets."""
        return {
            "any_of_keys": int(self.keys is None),
            "keys": sorted(self.keys or ()) or [b""],
            "any_of_tags": int(self.tags is None),
            "wanted_tags": sorted(self.tags or ()) or [b""],
            "key_prefix": self.key_prefix,
            "any_time": int(not self.bounds_time),
            "born_from": self.born_from.replace(tzinfo=None),
            "born_to": self.born_to.replace(tzinfo=None),
        }


ANYTHING = Bounds()


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _both(one: frozenset[T] | None, other: frozenset[T] | None) -> frozenset[T] | None:
    if one is None or other is None:
        return one if other is None else other
    return one & other
