"""Checks of options: an unknown name or a value of the wrong type is refused before anything is done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import Any, TypeGuard

from emsworker.core.errors import ConfigError, InvalidName, Problem
from emsworker.core.model import RESERVED_HEADERS

# Names from other systems, or from another call of ours, that no similarity leads to.
_ELSEWHERE = {
    "queue": ("topic",),
    "routing_key": ("topic", "key"),
    "uid": ("task_id",),
    "task_id": ("uid",),
    "timeout": ("timeout_s",),
    "time_limit": ("hard_time_limit_s",),
    "soft_time_limit": ("soft_time_limit_s",),
    "max_retries": ("max_attempts",),
    "default_retry_delay": ("ladder",),
}


def nearest(name: str, known: Collection[str]) -> str:
    """Return a hint to end a sentence about an unknown name: the name that was probably meant, or all known names."""
    from difflib import get_close_matches  # imported only for an error: the import costs more than the check

    meant = [one for one in _ELSEWHERE.get(name, ()) if one in known] or get_close_matches(name, known, 1, 0.6)
    return f"did you mean {meant[0]!r}?" if meant else f"known are {', '.join(sorted(known))}"


def unknown_options(call: str, given: Mapping[str, Any], known: Collection[str]) -> list[Problem]:
    """Return a problem for each option that a call does not know."""
    return [
        Problem(name, _short(value), f"{call} has no such option; {nearest(name, known)}")
        for name, value in given.items()
        if name not in known
    ]


def refuse_unknown(call: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse options that a call does not know.

    Raises:
        ConfigError: naming the unknown options.
    """
    if not all(name in known for name in given):
        raise ConfigError(unknown_options(call, given, known))


def refuse_reserved(headers: Mapping[str, str] | None) -> None:
    """Refuse headers whose names are reserved for EMS.

    Raises:
        InvalidName: a header has a reserved name.
    """
    if not headers or not isinstance(headers, Mapping):
        return
    for name in headers:
        if isinstance(name, str) and name.startswith(RESERVED_HEADERS):
            raise InvalidName(f"header {name!r} is reserved: names must not begin with {', '.join(RESERVED_HEADERS)}")


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether a value is a whole number; ``True`` and ``False`` are not, although they are ``int`` in Python."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number, ``nan`` and infinity included."""
    return isinstance(value, int | float) and not isinstance(value, bool)


_KINDS: dict[str, Callable[[Any], bool]] = {
    "a whole number": is_whole,
    "a number": lambda value: is_number(value) and abs(value) <= sys.float_info.max,
    "True or False": lambda value: isinstance(value, bool),
    "text": lambda value: isinstance(value, str),
}


def wrong_types(values: Mapping[str, Any], kinds: Mapping[str, str | type[StrEnum]]) -> list[Problem]:
    """Return a problem for each value of the wrong kind.

    Args:
        values: the values by name; each name must be in ``kinds``.
        kinds: by name ``a whole number``, ``a number``, ``True or False`` or ``text``, with ``?`` appended if ``None``
            is allowed; or an enum of the allowed words.
    """
    problems = []
    for name, value in values.items():
        kind = kinds[name]
        if not isinstance(kind, str):
            if value not in list(kind):
                problems.append(Problem(name, _short(value), f"must be one of {', '.join(kind)}"))
        elif not (kind.endswith("?") and value is None) and not _KINDS[kind.removesuffix("?")](value):
            problems.append(Problem(name, _short(value), f"must be {kind.removesuffix('?')}"))
    return problems


def refuse_wrong(call: str, values: Mapping[str, Any], kinds: Mapping[str, str | type[StrEnum]]) -> None:
    """Refuse options that a call does not know, and values of the wrong kind.

    Raises:
        ConfigError: naming all of them.
    """
    refuse_unknown(call, values, kinds)
    if problems := wrong_types(values, kinds):
        raise ConfigError(problems)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
