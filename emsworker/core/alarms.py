"""Alarm rules, and the state changes of an alarm when a value is measured; without I/O."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from emsworker.core.durations import format_duration
from emsworker.core.ids import check_name, uid_text
from emsworker.core.options import at_most, number, option, problems_in, refuse, seconds, text

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
    for_s: float = option(0.0, seconds())
    within_s: float = option(300.0, seconds())
    topic: str | None = option(None, text())
    group: str | None = option(None, text())
    webhook: str | None = option(None, text(_check_webhook, at_most(_MAX_CHARACTERS)), shown=_shown_webhook)
    command: str | None = option(None, text(_check_command, at_most(_MAX_CHARACTERS)))

    def __post_init__(self) -> None:
        check_name("alarm", self.name)
        most = _MOST_COUNTED if self.metric.is_counted else 1e18
        refuse([*number(0, most).problems("above", self.above), *problems_in(self)])

    def covers(self, topic: str, group: str) -> bool:
        """True if the rule covers this group."""
        return self.topic in (None, topic) and self.group in (None, group)

    @property
    def targets(self) -> list[str]:
        """Kinds of receivers that are set: ``webhook``, ``command``."""
        return [name for name in ("webhook", "command") if getattr(self, name) is not None]


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
