"""Alarm rules, and the state changes of an alarm when a value is measured; without I/O."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from emsworker.core.durations import LONGEST_S, format_duration
from emsworker.core.errors import ConfigError, Problem
from emsworker.core.ids import check_name, uid_text
from emsworker.core.options import wrong_types

_MAX_CHARACTERS = 1000
_MOST_COUNTED = 1_000_000


class Metric(StrEnum):
    """Quantity that a rule measures for each group."""

    LAG = "lag"
    OLDEST = "oldest"
    RETRIES = "retries"
    DEAD = "dead"
    NO_CONSUMER = "no_consumer"
    STUCK = "stuck"

    @property
    def is_duration(self) -> bool:
        """True if the value is in seconds."""
        return self in (Metric.OLDEST, Metric.STUCK)

    @property
    def is_counted(self) -> bool:
        """True if the value is a count of rows; rows are counted only up to the rule's limit."""
        return self in (Metric.RETRIES, Metric.DEAD)


@dataclass(frozen=True)
class Rule:
    """Condition that raises an alarm for a group, and the receivers to notify besides the log.

    Args:
        metric: ``lag``: messages that are unclaimed, or claimed and unfinished; ``oldest``: age in seconds of the
            oldest unfinished message; ``retries``: messages that wait for a retry; ``dead``: messages that became dead
            letters within ``within_s``; ``no_consumer``: messages that wait while the group has no client; ``stuck``:
            seconds for which a claim has made no progress.
        above: the threshold; a value above it is a breach.
        for_s: seconds for which the breach must last without interruption.
        within_s: the period of ``dead``, in seconds.
        topic, group: the groups that the rule covers; ``None`` for all.
        webhook: a URL that receives the alarm as JSON.
        command: a program with arguments that receives the alarm on its standard input.

    Raises:
        ConfigError: naming everything that is wrong.
    """

    name: str
    metric: Metric
    above: float = 0.0
    for_s: float = 0.0
    within_s: float = 300.0
    topic: str | None = None
    group: str | None = None
    webhook: str | None = None
    command: str | None = None

    def __post_init__(self) -> None:
        check_name("alarm", self.name)
        numbers, texts = ("above", "for_s", "within_s"), ("topic", "group", "webhook", "command")
        kinds = dict.fromkeys(numbers, "a number") | dict.fromkeys(texts, "text?")
        # A webhook is not shown, because it may hold a secret.
        problems = wrong_types({name: getattr(self, name) for name in kinds}, kinds)
        if problems:
            raise ConfigError(problems)
        problems = [
            Problem(name, f"{value:g}", "must lie between 0 and 100 years, in seconds")
            for name, value in (("for_s", self.for_s), ("within_s", self.within_s))
            if not 0 <= value <= LONGEST_S
        ]
        most = _MOST_COUNTED if self.metric.is_counted else 1e18
        if not 0 <= self.above <= most:
            problems.append(Problem("above", f"{self.above:g}", f"must lie between 0 and {most:g}"))
        if self.webhook is not None and (fix := _wrong_webhook(self.webhook)):
            problems.append(Problem("webhook", _shown_webhook(self.webhook), fix))
        if self.command is not None and (fix := _wrong_command(self.command)):
            problems.append(Problem("command", repr(self.command[:100]), fix))
        if problems:
            raise ConfigError(problems)

    def covers(self, topic: str, group: str) -> bool:
        """True if the rule covers this group."""
        return self.topic in (None, topic) and self.group in (None, group)

    @property
    def targets(self) -> list[str]:
        """Kinds of receivers that are set: ``webhook``, ``command``."""
        return [name for name in ("webhook", "command") if getattr(self, name) is not None]


def _shown_webhook(url: object) -> str:
    """Show only the scheme of the URL, because the rest may hold a secret."""
    try:
        scheme = urlsplit(url).scheme if isinstance(url, str) else ""
    except ValueError:
        scheme = ""
    return f"{scheme}://***" if scheme else "***"


def _wrong_webhook(url: object) -> str | None:
    if not isinstance(url, str):
        return "a webhook must be an address like https://host/path"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "its host or port is malformed; a webhook must be an address like https://host/path"
    if parts.scheme not in ("http", "https"):
        return "a webhook must begin with http:// or https://, like https://host/path; nothing was stored"
    if not parts.hostname:
        return "a webhook must name a host, like https://host/path; nothing was stored"
    return f"must have at most {_MAX_CHARACTERS} characters" if len(url) > _MAX_CHARACTERS else None


def _wrong_command(command: str) -> str | None:
    try:
        words = shlex.split(command)
    except ValueError as error:
        return f"cannot be read: {error}"
    if not words:
        return "must name a program"
    return f"must have at most {_MAX_CHARACTERS} characters" if len(command) > _MAX_CHARACTERS else None


@dataclass(frozen=True)
class Alarm:
    """Alarm of a rule for one group: a breach that has not lasted ``for_s`` yet, or an alarm that has fired.

    Args:
        since: when the breach began; ``fired_at``: when the alarm fired. Both in UTC, by the server's clock.
    """

    rule: str
    topic: str
    group: str
    alarm_id: bytes
    firing: bool
    value: float
    since: datetime
    fired_at: datetime | None = None


class Step(StrEnum):
    """State change of an alarm after a measurement."""

    BEGIN = "begin"
    FIRE = "fire"
    FORGET = "forget"
    RESOLVE = "resolve"


def next_step(rule: Rule, current: Alarm | None, value: float, now: datetime) -> Step | None:
    """Return the state change that a measured value causes; ``None`` if nothing changes."""
    if value > rule.above:
        if current is None:
            return Step.BEGIN
        lasted = now - current.since >= timedelta(seconds=rule.for_s)
        return Step.FIRE if not current.firing and lasted else None
    if current is None:
        return None
    return Step.RESOLVE if current.firing else Step.FORGET


def describe(rule: Rule, alarm: Alarm, event: str, now: datetime) -> dict[str, Any]:
    """Build the notification for receivers; its id stays the same when the alarm resolves and in every redelivery."""
    facts: dict[str, Any] = {
        "id": uid_text(alarm.alarm_id),
        "event": event,
        "rule": rule.name,
        "metric": rule.metric.value,
        "topic": alarm.topic,
        "group": alarm.group,
        "value": round(alarm.value, 3),
        "above": rule.above,
        "since": alarm.since.isoformat(),
        "at": now.isoformat(),
    }
    return facts | {"text": f"{rule.name} {event}: {_sentence(rule, alarm)}"}


def _sentence(rule: Rule, alarm: Alarm) -> str:
    value = format_duration(round(alarm.value)) if rule.metric.is_duration else f"{alarm.value:,.0f}"
    above = format_duration(rule.above) if rule.metric.is_duration else f"{rule.above:,.0f}"
    if rule.metric.is_counted and alarm.value > rule.above:
        value = f"more than {rule.above:,.0f}"
    return f"{rule.metric.value} of {alarm.topic}/{alarm.group} is {value} (alarm above {above})"
