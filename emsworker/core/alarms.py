"""Alarm rules, and the state changes of an alarm when a value is measured; without I/O.

The beat (``ems alarms``) and the Spark job (``ems pipeline alerts``) measure groups, keep alarms and deliver
notifications; both change an alarm by :func:`advance` alone.

    (none) --begin--> pending --fire--> firing --resolve--> (none)
                      pending --forget--> (none)
                                        firing --repeat--> firing
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID, uuid5

from emsworker.core.durations import LONGEST_S, format_duration, parse_duration
from emsworker.core.errors import Problem
from emsworker.core.ids import check_name, uid_text
from emsworker.core.options import Check, at_most, is_number, option, problems_in, raise_problems, seconds, text, whole

_MAX_CHARACTERS = 1000
_MOST_COUNTED = 1_000_000
_MOST_POINTS = 100  # of the history of one group
_IDS = UUID("6f1d6c0e-95f3-4c1b-9d59-2f3c7d1ad0c4")
TARGETS = ("webhook", "slack", "alertmanager", "command")
"""Kinds of receivers; each is a property of a rule, with the address."""
GONE = "the group is gone"
"""Reason for which an alarm of a deleted group is resolved."""


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
            the server has had no room to write.
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
    metric: Metric
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


class Attempts(NamedTuple):
    """Attempts of a group, from which an error rate is computed.

    Attributes:
        at: when they were counted, in seconds since 1970.
        position: the sum of the group's cursors.
        failed: attempts that failed since the previous count.
        retried: attempts since then that were not a message's first.
    """

    at: float
    position: int
    failed: int
    retried: int


def evaluate(rule: Rule, measured: float | Attempts, history: list[Attempts]) -> float | None:
    """Return the value to compare with the rule's threshold, ``None`` while the history is too short to tell.

    Args:
        history: the earlier counts of attempts; this function adds the latest, and drops those that are too old.
    """
    return _error_rate(rule, history, measured) if isinstance(measured, Attempts) else measured


def _error_rate(rule: Rule, history: list[Attempts], latest: Attempts) -> float | None:
    if len(history) > 1 and latest.at - history[-2].at < rule.within_s / _MOST_POINTS:
        merged = history.pop()  # points close to each other become one, to keep the history short
        latest = latest._replace(failed=merged.failed + latest.failed, retried=merged.retried + latest.retried)
    history.append(latest)
    while len(history) > 1 and history[1].at <= latest.at - rule.within_s:
        history.pop(0)
    first, *later = history
    failed, retried = sum(one.failed for one in later), sum(one.retried for one in later)
    # Messages taken since the first point, and retries.
    attempts = max(failed, latest.position - first.position + retried)
    if attempts >= rule.least:
        return failed / attempts
    return 0.0 if latest.at - first.at >= rule.within_s else None


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


class Step(StrEnum):
    """State change of an alarm after a measurement."""

    BEGIN = "begin"
    FIRE = "fire"
    REPEAT = "repeat"
    FORGET = "forget"
    RESOLVE = "resolve"

    @property
    def event(self) -> str | None:
        """The event that receivers are notified of, if any."""
        return {Step.FIRE: "firing", Step.REPEAT: "firing", Step.RESOLVE: "resolved"}.get(self)


def advance(
    rule: Rule,
    current: Alarm | None,
    place: tuple[str, str],
    value: float | None,
    now: datetime,
    *,
    silenced: bool = False,
) -> Iterator[tuple[Step, Alarm]]:
    """Yield the steps that a measured value causes, each with the alarm after it: none, one, or begin and fire.

    Args:
        current: the alarm before; ``None`` if there is none.
        place: topic and group.
        value: ``None`` if it could not be measured; then nothing changes.
        silenced: a silence covers the alarm now: it is muted when it fires, and not repeated.
    """
    if value is None:
        return
    if value <= rule.above:
        if current is not None:
            yield Step.RESOLVE if current.firing else Step.FORGET, replace(current, value=value)
        return
    if current is None:
        current = Alarm.begin(rule.name, *place, value, now)
        yield Step.BEGIN, current
    if not current.firing and now - current.since >= timedelta(seconds=rule.for_s):
        told_at = None if silenced else now
        yield Step.FIRE, replace(current, firing=True, value=value, fired_at=now, told_at=told_at, muted=silenced)
    elif current.firing and not silenced and (current.muted or _must_repeat(rule, current, now)):
        yield Step.REPEAT, replace(current, value=value, told_at=now, muted=False)


def _must_repeat(rule: Rule, alarm: Alarm, now: datetime) -> bool:
    last = alarm.told_at
    return last is not None and rule.repeat_s > 0 and now - last >= timedelta(seconds=rule.repeat_s)


def describe(rule: Rule, alarm: Alarm, event: str, now: datetime, reason: str = "") -> dict[str, Any]:
    """Build the notification for receivers; its id stays the same when the alarm resolves and in every redelivery.

    Args:
        reason: why the alarm is resolved, if not by a measured value.
    """
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
        "repeat_s": rule.repeat_s,
    }
    return facts | {"text": f"{rule.name} {event}: {reason or _sentence(rule, alarm)}"}


def _sentence(rule: Rule, alarm: Alarm) -> str:
    value = _shown(rule.metric, round(alarm.value) if rule.metric.is_duration else alarm.value)
    above = _shown(rule.metric, rule.above)
    if rule.metric.is_counted and alarm.value > rule.above:
        value = f"more than {above}"
    return f"{rule.metric.value} of {alarm.where} is {value} (alarm above {above})"


def _shown(metric: Metric, value: float) -> str:
    if metric is Metric.ERROR_RATE:
        return f"{value:.1%}"
    return format_duration(value) if metric.is_duration else f"{value:,.0f}"
