"""Delivery options of a message: when it may be read, and with which transaction it is committed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from emsworker.core.durations import parse_duration
from emsworker.core.errors import ConfigError, Problem
from emsworker.core.ids import encode_key
from emsworker.store.stream.outbox import When

_YEARS = range(1970, 9000)  # later years mark rows that wait for something other than a time


@dataclass(frozen=True)
class DeliveryOptions:
    """The time at which a message may be read, and the transaction with which it is sent.

    Args:
        countdown: seconds from now.
        eta: a time; without a zone it is UTC.
        delay: a duration as text (``"10m"``) or seconds.
        transaction: what :func:`emsworker.store.engine.foreign.run` takes.

    Raises:
        ConfigError: more than one time was given, or a message cannot be read at that time.
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
        for name in given:
            if name != "eta":
                _read_span(name, getattr(self, name))

    @property
    def direct(self) -> bool:
        """True if the message goes into the stream at once."""
        return self.transaction is None and self.countdown is None and self.eta is None and self.delay is None

    def when(self, server_time: Callable[[datetime], datetime]) -> When:
        """The time as the store takes it."""
        if self.eta is not None:
            try:
                return When(due_at=_checked(server_time(self.eta)))
            except (ValueError, OverflowError) as error:
                raise ConfigError([Problem("eta", repr(self.eta), str(error))]) from None
        name, value = ("delay", self.delay) if self.countdown is None else ("countdown", self.countdown)
        return When(delay_s=0.0 if value is None else _read_span(name, value))


def _read_span(name: str, value: str | float) -> float:
    try:
        return parse_duration(value)
    except ValueError as error:
        raise ConfigError([Problem(name, repr(value), str(error))]) from None


def read_dedup(key: str | bytes | None, window: str | float) -> tuple[bytes, float] | None:
    """Return the dedup key of a message and its window in seconds, or ``None`` if it has no key.

    Raises:
        InvalidName: the key is not valid.
        ConfigError: the window is not a duration.
    """
    raw = encode_key("dedup_key", key)
    return None if raw is None else (raw, _read_span("dedup_window", window))


def _checked(eta: datetime) -> datetime:
    if eta.year not in _YEARS:
        raise ValueError(f"it lies outside of the years {_YEARS[0]} to {_YEARS[-1]}")
    return eta


DELIVERY_OPTIONS = frozenset(field.name for field in fields(DeliveryOptions))


def split_delivery(options: Mapping[str, Any]) -> tuple[DeliveryOptions, dict[str, Any]]:
    """Split the options of a send into its delivery options and the others."""
    delivery = DeliveryOptions(**{name: value for name, value in options.items() if name in DELIVERY_OPTIONS})
    return delivery, {name: value for name, value in options.items() if name not in DELIVERY_OPTIONS}
