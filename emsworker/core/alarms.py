"""Alarm rules, their alarms and silences, as the stream keeps them; without I/O."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid5

from emsworker.core.durations import LONGEST_S, parse_duration
from emsworker.core.errors import Problem
from emsworker.core.extension import Extension, Measure, measures
from emsworker.core.ids import check_name
from emsworker.core.options import Check, at_most, is_number, option, problems_in, raise_problems, seconds, text, whole

_MAX_CHARACTERS = 1000
_MOST_COUNTED = 1_000_000
_IDS = UUID("6f1d6c0e-95f3-4c1b-9d59-2f3c7d1ad0c4")
TARGETS = ("webhook", "slack", "alertmanager", "command")
"""Kinds of receivers; each is a property of a rule, with the address."""
STREAM = ("", "")
"""Topic and group of an alarm of the whole stream."""


class Metric(StrEnum):
    """Quantity that a rule measures, for each group or for the whole stream."""

    LAG = "lag"
    OLDEST = "oldest"
    RETRIES = "retries"
    DEAD = "dead"
    NO_CONSUMER = "no_consumer"
    STUCK = "stuck"
    ERROR_RATE = "error_rate"
    REFUSED = "refused"
    LOCKED = "locked"
    DISK_FULL = "disk_full"

    @property
    def threshold(self) -> Check:
        """Check for the values that a rule compares this quantity with; its ``read`` makes one of text."""
        if self.is_duration:
            return Check(_check_span, parse_duration, "seconds")
        if self is Metric.ERROR_RATE:
            return Check(_check_share, parse_share, "number")
        return _count(_MOST_COUNTED if self.is_counted else 10**18)

    @property
    def is_duration(self) -> bool:
        """True if the value is in seconds."""
        return self in (Metric.OLDEST, Metric.STUCK, Metric.LOCKED, Metric.DISK_FULL)

    @property
    def is_counted(self) -> bool:
        """True if the value is a count of rows; rows are counted only up to the rule's limit."""
        return self in (Metric.RETRIES, Metric.DEAD, Metric.REFUSED)

    @property
    def of_stream(self) -> bool:
        """True if it is measured once for the whole stream, at :data:`STREAM`, and not for each group."""
        return self in (Metric.REFUSED, Metric.LOCKED, Metric.DISK_FULL)

    @property
    def of_groups(self) -> bool:
        """True if it is measured for each group."""
        return not self.of_stream


@dataclass(frozen=True)
class ExtensionMetric:
    """Quantity that an extension measures, for whatever it names.

    Args:
        value: its name.
        extension, measure: those that measure it; ``None`` if they are not installed here.
    """

    value: str
    extension: Extension | None = None
    measure: Measure | None = None
    is_counted = of_stream = of_groups = False

    def __str__(self) -> str:
        return self.value

    @property
    def is_duration(self) -> bool:
        """True if the value is in seconds."""
        return self.measure is None or self.measure.is_duration

    @property
    def threshold(self) -> Check:
        """Check for the values that a rule compares this quantity with; its ``read`` makes one of text."""
        return Check(_check_span, parse_duration, "seconds") if self.is_duration else _count(10**18)


AnyMetric = Metric | ExtensionMetric


def metric_names() -> list[str]:
    """Return the names of all that can be measured here."""
    return [*Metric, *(name for _, name, _ in measures())]


def find_metric(name: str) -> AnyMetric:
    """Return what a rule measures; one of an extension that is not installed here is measured by nobody."""
    if name in list(Metric):
        return Metric(name)
    found = ((extension, measure) for extension, known, measure in measures() if known == name)
    return ExtensionMetric(name, *next(found, ()))


def _check_span(value: Any) -> None:
    if not is_number(value) or not 0 <= value <= LONGEST_S:
        raise ValueError("must be a number of seconds, from 0 to 100 years")


def _check_share(value: Any) -> None:
    if not is_number(value) or not 0 <= value <= 1:
        raise ValueError("must be a share from 0 to 1, like 0.05")


def _count(most: int) -> Check:
    """Return a check for counts of messages up to ``most``."""
    fix = f"must be a count of messages: a whole number from 0 to {most}, like 100"

    def verify(value: Any) -> None:
        if not is_number(value) or not 0 <= value <= most or value != int(value):
            raise ValueError(fix)

    def read(text: str) -> float:
        if not text.isascii() or not text.isdigit():
            raise ValueError(fix)
        return float(text)

    return Check(verify, read, "whole")


def _shown_webhook(url: object) -> str:
    """Show only the scheme of the URL, because the rest may hold a secret."""
    try:
        scheme = urlsplit(url).scheme if isinstance(url, str) else ""
    except ValueError:
        scheme = ""
    return f"{scheme}://***" if scheme else "***"


def _check_webhook(url: str) -> None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ValueError("its host or port is malformed; a webhook is an address like https://host/path") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError("a webhook must begin with http:// or https://, like https://host/path; nothing was stored")
    if not parts.hostname:
        raise ValueError("a webhook must name a host, like https://host/path; nothing was stored")


def _check_command(command: str) -> None:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"cannot be read: {error}") from None
    if not words:
        raise ValueError("must name a program")


@dataclass(frozen=True)
class Rule:
    """Condition that raises an alarm for a group, and the receivers to notify besides the log.

    Args:
        metric: ``lag``: messages that are unclaimed, or claimed and unfinished; ``oldest``: age in seconds of the
            oldest unfinished message; ``retries``: messages that wait for a retry; ``dead``: messages that became dead
            letters within ``within_s``; ``no_consumer``: messages that wait while the group has no client; ``stuck``:
            seconds for which a claim has made no progress; ``error_rate``: share of attempts that failed;
            ``refused``: rows of ``ems_publish`` that are refused, in the whole stream; ``disk_full``: seconds for which
            the server has had no room to write. Extensions measure more.
        above: the threshold; a value above it is a breach.
        for_s: seconds for which the breach must last without interruption.
        within_s: the period of ``dead`` and ``error_rate``, in seconds.
        least: the fewest attempts in that period that make an ``error_rate``.
        topic, group: the groups that the rule covers; ``None`` for all.
        webhook: a URL that receives the alarm as JSON.
        command: a program with arguments that receives the alarm on its standard input.
        repeat_s: seconds after which receivers are notified again while it fires; 0 for once only.
        slack: the URL of an incoming webhook of Slack, or of a chat that takes the same.
        alertmanager: the address of a Prometheus Alertmanager, without its path.

    Raises:
        ConfigError: naming everything that is wrong.
    """

    name: str
    metric: AnyMetric
    above: float = 0.0
    for_s: float = option(0.0, seconds())
    within_s: float = option(300.0, seconds())
    least: int = option(10, whole(1, _MOST_COUNTED))
    topic: str | None = option(None, text())
    group: str | None = option(None, text())
    webhook: str | None = option(None, text(_check_webhook, at_most(_MAX_CHARACTERS)), shown=_shown_webhook)
    command: str | None = option(None, text(_check_command, at_most(_MAX_CHARACTERS)))
    repeat_s: float = option(0.0, seconds())
    slack: str | None = option(None, text(_check_webhook, at_most(_MAX_CHARACTERS)), shown=_shown_webhook)
    alertmanager: str | None = option(None, text(_check_webhook, at_most(_MAX_CHARACTERS)), shown=_shown_webhook)

    def __post_init__(self) -> None:
        check_name("alarm", self.name)
        limit = self.metric.threshold.problems("above", self.above)
        of = f"of {self.metric} "
        raise_problems(
            [*(replace(one, fix=of + one.fix) for one in limit), *self._problems_of_place(), *problems_in(self)]
        )

    def _problems_of_place(self) -> Iterator[Problem]:
        for name, value in (("topic", self.topic), ("group", self.group)):
            if self.metric.of_stream and value is not None:
                yield Problem(name, repr(value), f"must be left out: {self.metric} is measured for the whole stream")

    def covers(self, topic: str, group: str) -> bool:
        """True if the rule covers this group."""
        return self.topic in (None, topic) and self.group in (None, group)

    @property
    def targets(self) -> list[str]:
        """Kinds of receivers that are set, of :data:`TARGETS`."""
        return [name for name in TARGETS if getattr(self, name) is not None]


@dataclass(frozen=True)
class Silence:
    """Span of time in which receivers are not notified; alarms fire and are resolved all the same.

    Args:
        silence_id: its number.
        rule, topic, group: the alarms that it covers; ``None`` for all.
        reason: shown to people.
        ends_at: in UTC, by the server's clock.
    """

    silence_id: int
    rule: str | None
    topic: str | None
    group: str | None
    reason: str
    ends_at: datetime

    def covers(self, rule: str, topic: str, group: str) -> bool:
        """True if the silence covers the alarm of this rule for this group."""
        return self.rule in (None, rule) and self.topic in (None, topic) and self.group in (None, group)


def parse_share(text: str) -> float:
    """Parse a share, ``0.05`` or ``5%``.

    Raises:
        ValueError: not a share from 0 to below 1.
    """
    match = re.fullmatch(r"(\d+|\d*\.\d+)(%?)", text)
    number = float(match[1]) / (100 if match[2] else 1) if match else 1.0
    if number >= 1:
        raise ValueError("must be a share from 0 to below 1, like 0.05 or 5%")
    return number


@dataclass(frozen=True)
class Alarm:
    """Alarm of a rule for one group: a breach that has not lasted ``for_s`` yet, or an alarm that has fired.

    Args:
        since: when the breach began; ``fired_at``: when the alarm fired. Both in UTC, by the server's clock.
        told_at: when receivers were last notified that it fires.
        muted: it fires, and a silence has kept that from its receivers until now.
    """

    rule: str
    topic: str
    group: str
    alarm_id: bytes
    firing: bool
    value: float
    since: datetime
    fired_at: datetime | None = None
    told_at: datetime | None = None
    muted: bool = False

    @property
    def where(self) -> str:
        """The group, as topic/group, or the stream."""
        return "the stream" if (self.topic, self.group) == STREAM else f"{self.topic}/{self.group}"

    @classmethod
    def begin(cls, rule: str, topic: str, group: str, value: float, since: datetime) -> Alarm:
        """Make the alarm of a breach; its id follows from the other arguments but the value."""
        alarm_id = uuid5(_IDS, "\0".join((rule, topic, group, since.isoformat()))).bytes
        return cls(rule, topic, group, alarm_id, False, value, since)
