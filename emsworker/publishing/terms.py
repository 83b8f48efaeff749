"""On which terms a message is sent: when it may be read, and with whose transaction it is committed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from emsworker.core.durations import parse_duration
from emsworker.core.errors import ConfigError, InvalidName, Problem
from emsworker.core.model import RESERVED_HEADERS
from emsworker.store.pending import When

_YEARS = range(1970, 9000)  # those after are for rows that wait for something else than a time


@dataclass(frozen=True)
class Terms:
    """When a message may be read, and with whose transaction it is sent.

    Args:
        countdown: seconds from now.
        eta: a time; without a zone it is UTC.
        delay: a duration as text (``"10m"``) or seconds.
        transaction: what :func:`emsworker.store.foreign.run` takes.

    Raises:
        ConfigError: more than one time was given, or it is no time at which a message can be read.
    """

    countdown: float | None = None
    eta: datetime | None = None
    delay: str | float | None = None
    transaction: Any = None

    def __post_init__(self) -> None:
        given = [name for name in ("countdown", "eta", "delay") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError([Problem(given[1], str(getattr(self, given[1])), f"give either {' or '.join(given)}")])
        if self.eta is not None and not isinstance(self.eta, datetime):
            raise ConfigError([Problem("eta", repr(self.eta), "must be a datetime; `countdown` takes seconds")])

    @property
    def direct(self) -> bool:
        """Whether it goes into the stream at once."""
        return self.transaction is None and self.countdown is None and self.eta is None and self.delay is None

    def when(self, server_time: Callable[[datetime], datetime]) -> When:
        """The time as the store takes it."""
        name = "delay" if self.countdown is None else "countdown"
        value: Any = self.delay if self.countdown is None else self.countdown
        try:
            if self.eta is not None:
                name, value = "eta", self.eta
                return When(due_at=_checked(server_time(self.eta)))
            return When(delay_s=parse_duration(0.0 if value is None else value))
        except (ValueError, OverflowError) as error:
            raise ConfigError([Problem(name, repr(value), str(error))]) from None


def _checked(eta: datetime) -> datetime:
    if eta.year not in _YEARS:
        raise ValueError(f"it lies outside of the years {_YEARS[0]} to {_YEARS[-1]}")
    return eta


def split_terms(options: Mapping[str, Any]) -> tuple[Terms, dict[str, Any]]:
    """The terms among the options of a send, and the other options."""
    names = {field.name for field in fields(Terms)}
    terms = Terms(**{name: value for name, value in options.items() if name in names})
    return terms, {name: value for name, value in options.items() if name not in names}


def refuse_reserved(headers: Mapping[str, str] | None) -> None:
    """Keep callers from writing headers that are ours.

    Raises:
        InvalidName: one of them has such a name.
    """
    for name in headers if isinstance(headers, Mapping) else ():
        if isinstance(name, str) and name.startswith(RESERVED_HEADERS):
            raise InvalidName(f"header {name!r} is reserved: names must not begin with {', '.join(RESERVED_HEADERS)}")
