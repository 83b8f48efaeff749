"""Options: a dataclass field with its check and its help, and one way to check them, with all problems at once.

@dataclass(frozen=True)
class Pause:
length_s: float = option(5.0, seconds(1), help="seconds between two runs")

def __post_init__(self) -> None:
raise_problems(problems_in(self))
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, TypeGuard

from emsworker.core.durations import LONGEST_S, format_duration, parse_duration
from emsworker.core.errors import ConfigError, InvalidName, Problem
from emsworker.core.url import redact, redact_url

RESERVED_HEADERS = ("ems-", "content-", "compression")

LARGEST = (1 << 63) - 1
_WHOLE = re.compile("-?[0-9]{1,20}")

# Names whose values may be secrets and are never shown; an unknown option may have such a name.
_SECRET_NAME = re.compile("passw|pwd|secret|token", re.IGNORECASE)

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


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether a value is a whole number; ``True`` and ``False`` are not, although they are ``int`` in Python."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number, ``nan`` and infinity included."""
    return isinstance(value, int | float) and not isinstance(value, bool)


# -- checks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """Values that an option takes.

    Args:
        verify: raises ValueError, whose text is the fix, for a value that the option does not take.
        read: makes a value of text, from a variable or a command line; raises ValueError likewise.
        form: the form of the values: ``text``, ``whole``, ``number``, ``seconds``, ``flag``, ``texts`` or ``choice``.
        words: the words of a choice.
    """

    verify: Callable[[Any], object]
    read: Callable[[str], Any] = str
    form: str = "text"
    words: tuple[str, ...] = ()

    def parse(self, text: str) -> Any:
        """Make a value of a text, and verify it.

        Raises:
            ValueError: the option does not take it; the text is the fix.
        """
        value = self.read(text)
        self.verify(value)
        return value

    def problems(self, name: str, value: Any) -> list[Problem]:
        """Return the problem of a value, if the option does not take it."""
        try:
            self.verify(value)
        except (ValueError, TypeError) as error:
            return [Problem(name, shown(name, value), str(error))]
        return []


def whole(least: int = 0, most: int = LARGEST) -> Check:
    """Return a check for whole numbers from ``least`` to ``most``."""
    fix = f"must be a whole number {f'of {least} or more' if most == LARGEST else f'from {least} to {most}'}"

    def verify(value: Any) -> None:
        if not is_whole(value) or not least <= value <= most:
            raise ValueError(fix)

    def read(text: str) -> int:
        if not _WHOLE.fullmatch(text.strip()):
            raise ValueError(fix)
        return int(text)

    return Check(verify, read, "whole")


def number(least: float = -sys.float_info.max, most: float = sys.float_info.max) -> Check:
    """Return a check for numbers from ``least`` to ``most``."""

    def verify(value: Any) -> None:
        if not is_number(value):
            raise ValueError("must be a number")
        if not least <= value <= most:  # true for nan, too
            raise ValueError(f"must lie between {least:g} and {most:g}")

    return Check(verify, _read_number, "number")


def seconds(least: float = 0.0) -> Check:
    """Return a check for spans of at least ``least`` seconds, given as a number."""

    def verify(value: Any) -> None:
        if not is_number(value):
            raise ValueError("must be a number of seconds")
        if not least <= value <= LONGEST_S:
            raise ValueError(f"must lie between {format_duration(least)} and 100 years, in seconds")

    return Check(verify, parse_duration, "seconds")


SPAN = Check(parse_duration, parse_duration, "seconds")
"""Check for durations, as seconds or as text like ``5m``."""


def flag() -> Check:
    """Return a check for ``True`` and ``False``."""

    def verify(value: Any) -> None:
        if not isinstance(value, bool):
            raise ValueError("must be True or False")

    return Check(verify, _read_flag, "flag")


def text(*checks: Callable[[str], object]) -> Check:
    """Return a check for text that passes further checks, which raise ValueError."""

    def verify(value: Any) -> None:
        if not isinstance(value, str):
            raise ValueError("must be text")
        for check in checks:
            check(value)

    return Check(verify)


def at_most(characters: int) -> Callable[[str], None]:
    """Return a check of a text's length, for :func:`text`."""

    def check(value: str) -> None:
        if len(value) > characters:
            raise ValueError(f"must have at most {characters} characters")

    return check


def texts(*checks: Callable[[str], object]) -> Check:
    """Return a check for a tuple of texts, each of which passes further checks."""

    def verify(value: Any) -> None:
        if not isinstance(value, tuple) or not all(isinstance(one, str) for one in value):
            raise ValueError("must be a tuple of strings")
        for one in value:
            for check in checks:
                check(one)

    return Check(verify, lambda text: tuple(part.strip() for part in text.split(",") if part.strip()), "texts")


def choice(words: Iterable[str]) -> Check:
    """Return a check for one of some words; of an enum, whose members are read."""
    allowed = tuple(map(str, words))

    def verify(value: Any) -> None:
        if value not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")

    enum = words if isinstance(words, type) and issubclass(words, StrEnum) else None
    return Check(verify, enum or str, "choice", allowed)


def of_type(kind: type, like: str) -> Check:
    """Return a check for instances of a class; ``like`` names it with an example."""

    def verify(value: Any) -> None:
        if not isinstance(value, kind):
            raise ValueError(f"must be {like}")

    return Check(verify)


def _read_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("must be a number") from None


def _read_flag(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError("must be true or false")


# -- options -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Option:
    """Declaration of an option; ``None`` is allowed if it is the default.

    Args:
        shown: formats a value for an error message, instead of :func:`shown`.
    """

    default: Any
    check: Check
    help: str
    shown: Callable[[Any], str] | None = None

    def problems(self, name: str, value: Any) -> list[Problem]:
        """Return the problem of a value, if the option does not take it."""
        if value is None and self.default is None:
            return []
        found = self.check.problems(name, value)
        return found if self.shown is None else [Problem(name, self.shown(value), one.fix) for one in found]

    def read(self, text: str) -> Any:
        """Make a value of a text; an empty one is ``None`` if that is the default.

        Raises:
            ValueError: the text is not a value of this option.
        """
        return None if text == "" and self.default is None else self.check.read(text)


def option(
    default: Any, check: Check, *, help: str = "", secret: bool = False, shown: Callable[[Any], str] | None = None
) -> Any:
    """Define a field of a dataclass as an option; a secret one is left out of ``repr``."""
    return option_field(Option(default, check, help, shown), secret=secret)


def option_field(declared: Option, *, secret: bool = False) -> Any:
    """Define a field of a dataclass by the declaration of its option."""
    return field(default=declared.default, repr=not secret, metadata={"option": declared})


def options_of(owner: type) -> Mapping[str, Option]:
    """Return the options of a dataclass by name."""
    if owner not in _DECLARED:
        declared: Any = owner
        _DECLARED[owner] = {one.name: one.metadata["option"] for one in fields(declared) if "option" in one.metadata}
    return _DECLARED[owner]


_DECLARED: dict[type, Mapping[str, Option]] = {}


def problems_in(values: Any) -> list[Problem]:
    """Return the problems of a dataclass instance's options, each by itself."""
    found = options_of(type(values)).items()
    return [problem for name, one in found for problem in one.problems(name, getattr(values, name))]


def problems_of(call: str, given: Mapping[str, Any], known: Mapping[str, Option]) -> list[Problem]:
    """Return the problems of options that were given to a call, unknown names included."""
    problems = unknown_options(call, given, known)
    return problems + [one for name in given if name in known for one in known[name].problems(name, given[name])]


def raise_problems(problems: Collection[Problem]) -> None:
    """Raise an error that names all problems, if there are any.

    Raises:
        ConfigError: there are some.
    """
    if problems:
        raise ConfigError([*problems])


def nearest(name: str, known: Collection[str]) -> str:
    """Return a hint to end a sentence about an unknown name: the name that was probably meant, or all known names."""
    meant = probably_meant(name, known)
    if meant:
        return f"did you mean {meant!r}?"
    return f"known are {', '.join(sorted(known))}" if known else "none is known"


def probably_meant(name: str, known: Collection[str]) -> str | None:
    """Return the known name that is most like an unknown one, if any is."""
    from difflib import get_close_matches  # imported only for an error: the import costs more than the check

    meant = [one for one in _ELSEWHERE.get(name, ()) if one in known] or get_close_matches(name, known, 1, 0.6)
    return meant[0] if meant else None


def unknown_options(call: str, given: Mapping[str, Any], known: Collection[str]) -> list[Problem]:
    """Return a problem for each option that a call does not know."""
    return [
        Problem(name, shown(name, value), f"{call} has no such option; {nearest(name, known)}")
        for name, value in given.items()
        if name not in known
    ]


def refuse_unknown(call: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse options that a call does not know.

    Raises:
        ConfigError: naming the unknown options.
    """
    if given and not all(name in known for name in given):
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


def shown(name: str, value: object) -> str:
    """Format the value of an option for an error message, without secrets."""
    if _SECRET_NAME.search(name):
        return "***"
    text = repr(redact_url(value)) if isinstance(value, str) else redact(repr(value))
    return text if len(text) <= 100 else f"{text[:100]}..."
