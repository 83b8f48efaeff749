"""Predicate language to select messages, like the condition of a SELECT: parsed, never executed as SQL.

    tag = 'new' and key like 'eu-%' and header('region') = '1' and born_at >= '2026-01-31' and body.amount > 10

:attr:`Predicate.bounds` gives its conditions on indexes and plain columns, for a statement with parameters;
:meth:`Predicate.matches` evaluates all of it. As in SQL, a comparison with a missing value, or of values that cannot be
compared, is unknown: neither it nor its ``not`` chooses a message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any
from uuid import UUID

from emsworker.core.selection.bounds import ANYTHING, Bounds

Truth = bool | None
Getter = Callable[[Any], Any]


@dataclass(frozen=True)
class Field:
    """Field of a message that a predicate reads.

    Args:
        name: ``id key tag partition offset size born_at producer header body``.
        path: for a header its name; for a body the names and indexes that lead into it.
    """

    name: str
    path: tuple[str | int, ...] = ()

    def of(self, message: Any) -> Any:
        """Return the field's value, ``None`` if there is none."""
        if self.name == "header":
            return message.headers.get(self.path[0])
        value = getattr(message, self.name)
        for step in self.path:
            value = _step(value, step)
        return _plain(value)


def _step(value: Any, step: str | int) -> Any:
    if isinstance(step, str):
        return value.get(step) if isinstance(value, dict) else None
    return value[step] if isinstance(value, (list, tuple)) and -len(value) <= step < len(value) else None


def _plain(value: Any) -> Any:
    """Convert a value to the type of a literal: text, a number, a time, a truth value, or nothing."""
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, UUID) else value


_KINDS: tuple[tuple[type, ...], ...] = ((bool,), (int, float, Decimal), (str,), (datetime,))


def _kind(value: Any) -> int | None:
    return next((number for number, types in enumerate(_KINDS) if isinstance(value, types)), None)


class Node:
    """Part of a predicate."""

    @property
    def uses_body(self) -> bool:
        """True if the body must be read."""
        raise NotImplementedError

    @property
    def bounds(self) -> Bounds:
        """Conditions that hold for every message that this part chooses."""
        return ANYTHING

    def judge(self, message: Any) -> Truth:
        """Return true, false, or ``None`` for unknown."""
        raise NotImplementedError


@dataclass(frozen=True)
class _OfField(Node):
    field: Field

    @property
    def uses_body(self) -> bool:
        """True if the body must be read."""
        return self.field.name == "body"


@dataclass(frozen=True)
class _OfParts(Node):
    parts: tuple[Node, ...]

    @property
    def uses_body(self) -> bool:
        """True if the body must be read."""
        return any(part.uses_body for part in self.parts)


@dataclass(frozen=True)
class Compare(_OfField):
    """``field op value`` with one of ``= <> < <= > >=``."""

    op: str
    value: Any

    @property
    def bounds(self) -> Bounds:
        """Bounds on plain columns."""
        return Bounds.of(self.field.name, self.op, (self.value,))

    def judge(self, message: Any) -> Truth:
        """Compare the values; those of different kinds cannot be compared, which is unknown."""
        found = self.field.of(message)
        if _kind(found) is None or _kind(found) != _kind(self.value):
            return None
        return _OPERATIONS[self.op](found, self.value)


_OPERATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: bool(a == b),
    "<>": lambda a, b: bool(a != b),
    "<": lambda a, b: bool(a < b),
    "<=": lambda a, b: bool(a <= b),
    ">": lambda a, b: bool(a > b),
    ">=": lambda a, b: bool(a >= b),
}


@dataclass(frozen=True)
class Like(_OfField):
    r"""``field like 'pattern'``: ``%`` stands for any text, ``_`` for one character, ``\`` escapes either."""

    pattern: str

    @property
    def bounds(self) -> Bounds:
        """Bounds on the beginning of a key."""
        parts = list(_pattern_parts(self.pattern))
        fixed = next((number for number, (wild, _) in enumerate(parts) if wild), len(parts))
        return Bounds.of(self.field.name, "prefix", ("".join(text for _, text in parts[:fixed]),))

    def judge(self, message: Any) -> Truth:
        """Match text against the pattern; any other value is unknown."""
        found = self.field.of(message)
        if not isinstance(found, str):
            return None
        return _is_like(found, _segments(self.pattern))


_WILD = frozenset("%_")


@lru_cache(64)
def _segments(pattern: str) -> list[tuple[re.Pattern[str], int]]:
    """Split a pattern at its ``%`` into segments, each with its length."""
    segments: list[list[str]] = [[]]
    for wild, text in _pattern_parts(pattern):
        if wild and text == "%":
            segments.append([])
        else:
            segments[-1].append("." if wild else re.escape(text))
    return [(re.compile("".join(segment), re.DOTALL), len(segment)) for segment in segments]


def _is_like(text: str, segments: list[tuple[re.Pattern[str], int]]) -> bool:
    """Find each segment at its first place after the previous one, in one pass; one regex might backtrack for ever."""
    (head, length), *others = segments
    if not others:
        return head.fullmatch(text) is not None
    if not head.match(text):
        return False
    *middle, (tail, tail_length) = others
    for segment, _ in middle:
        found = segment.search(text, length)
        if found is None:
            return False
        length = found.end()
    return len(text) - tail_length >= length and tail.match(text, len(text) - tail_length) is not None


def _pattern_parts(pattern: str) -> Iterator[tuple[bool, str]]:
    """Yield for each character of a pattern whether it is a wildcard, and the character."""
    for escaped, plain in re.findall(r"\\(.)|(.)", pattern, re.DOTALL):
        yield plain in _WILD, escaped or plain


@dataclass(frozen=True)
class Missing(_OfField):
    """``field is null``."""

    def judge(self, message: Any) -> Truth:
        """Return true or false, never unknown."""
        return self.field.of(message) is None


@dataclass(frozen=True)
class Not(Node):
    """``not part``."""

    part: Node

    @property
    def uses_body(self) -> bool:
        """True if the body must be read."""
        return self.part.uses_body

    def judge(self, message: Any) -> Truth:
        """Negate the part; unknown stays unknown."""
        found = self.part.judge(message)
        return None if found is None else not found


@dataclass(frozen=True)
class All(_OfParts):
    """``part and part ...``."""

    @property
    def bounds(self) -> Bounds:
        """Intersection of the bounds of all parts."""
        found = ANYTHING
        for part in self.parts:
            found = found & part.bounds
        return found

    def judge(self, message: Any) -> Truth:
        """Return false if a part is false, else unknown if a part is unknown."""
        unknown = False
        for part in self.parts:
            found = part.judge(message)
            if found is False:
                return False
            unknown |= found is None
        return None if unknown else True


@dataclass(frozen=True)
class Some(_OfParts):
    """``part or part ...``."""

    def judge(self, message: Any) -> Truth:
        """Return true if a part is true, else unknown if a part is unknown."""
        unknown = False
        for part in self.parts:
            found = part.judge(message)
            if found:
                return True
            unknown |= found is None
        return None if unknown else False


@dataclass(frozen=True)
class OneOf(_OfField):
    """``field in (value, ...)``."""

    values: tuple[Any, ...]

    @property
    def bounds(self) -> Bounds:
        """Bounds on plain columns."""
        return Bounds.of(self.field.name, "=", self.values)

    def judge(self, message: Any) -> Truth:
        """Compare with each of the values."""
        return Some(tuple(Compare(self.field, "=", value) for value in self.values)).judge(message)


class Predicate:
    """Condition on messages.

    Args:
        parts: the parts, all of which must hold.

    Attributes:
        bounds: conditions that hold for every chosen message, for a statement.
        uses_body: whether bodies must be read.
    """

    def __init__(self, *parts: Node) -> None:
        flat = [inner for part in parts for inner in (part.parts if isinstance(part, All) else (part,))]
        self._cheap = All(tuple(part for part in flat if not part.uses_body))
        self._dear = All(tuple(part for part in flat if part.uses_body))
        self.bounds = self._cheap.bounds
        self.uses_body = bool(self._dear.parts)

    def may_match(self, message: Any) -> bool:
        """Return false if the message cannot match, judged before its body is read."""
        return self._cheap.judge(message) is True

    def matches(self, message: Any) -> bool:
        """Return whether the message is chosen; its body must be present if ``uses_body``."""
        return self.may_match(message) and self._dear.judge(message) is True
