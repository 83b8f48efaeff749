"""Pages of long lists: each page ends with a token, from which the next one begins (keyset paging)."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from emsworker.core.errors import ConfigError, Problem
from emsworker.core.options import raise_problems, whole

T = TypeVar("T")
R = TypeVar("R")

_LIMIT = whole(1, 10_000)
_LARGEST = (1 << 64) - 1


@dataclass(frozen=True)
class Listing(Generic[T]):
    """Page of a list.

    Attributes:
        after: the token from which the next page begins, ``None`` if there is nothing more.
    """

    rows: tuple[T, ...]
    after: str | None


def page_of(
    rows: Sequence[R], limit: int, token_of: Callable[[R], Sequence[Any]], shown: Callable[[R], T]
) -> Listing[T]:
    """Return a page of rows, of which one more was read than it shows.

    Args:
        limit: the rows of the page.
        token_of: the values by which a row is found again; texts and numbers.
        shown: makes the row that callers see.
    """
    page = rows[:limit]
    return Listing(tuple(map(shown, page)), encode_token(token_of(page[-1])) if len(rows) > limit else None)


def encode_token(values: Sequence[Any]) -> str:
    """Write the place of a row as a token, which is safe in a URL."""
    return urlsafe_b64encode(json.dumps(list(values), separators=(",", ":")).encode()).decode().rstrip("=")


def decode_token(token: str | None, *kinds: type) -> list[Any] | None:
    """Read a token; ``None`` for ``None``.

    Args:
        kinds: of its values: ``int``, ``bytes`` as hexadecimal digits, or ``datetime`` as the server writes it.

    Raises:
        ConfigError: no list of this kind has made it.
    """
    if token is None:
        return None
    try:
        values = json.loads(urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        if isinstance(values, list):
            return [_READERS[kind](value) for kind, value in zip(kinds, values, strict=True)]
    except (ValueError, TypeError, RecursionError):
        pass
    raise ConfigError([Problem("after", repr(token)[:100], "is no page of this list; begin with the first page")])


def _read_whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise ValueError
    return value


def _read_time(value: Any) -> str:
    datetime.fromisoformat(value)
    if not isinstance(value, str) or not value.isascii():
        raise ValueError
    return value


_READERS: dict[type, Callable[[Any], Any]] = {int: _read_whole, bytes: bytes.fromhex, datetime: _read_time}


def check_limit(limit: int) -> None:
    """Refuse a wrong number of rows.

    Raises:
        ConfigError: not a whole number, or out of range.
    """
    raise_problems(_LIMIT.problems("limit", limit))
