"""The state changes of an alarm when a value is measured; without I/O.

The beat (``ems alarms``) and the Spark job (``ems pipeline alerts``) measure groups, keep alarms and deliver
notifications; both change an alarm by :func:`advance` alone.

    (none) --begin--> pending --fire--> firing --resolve--> (none)
                      pending --forget--> (none)
                                        firing --repeat--> firing
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from emsworker.extending.values import Alarm, AnyMetric, Metric, Rule, format_duration, uid_text

GONE = "the group is gone"
"""Reason for which an alarm of a deleted group is resolved."""

_MOST_POINTS = 100  # of the history of one group


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


def _shown(metric: AnyMetric, value: float) -> str:
    if metric is Metric.ERROR_RATE:
        return f"{value:.1%}"
    return format_duration(value) if metric.is_duration else f"{value:,.0f}"
