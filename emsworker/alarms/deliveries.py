"""Alarms that change, and the deliveries to be made for it.

An alarm changes its state in the transaction that writes its deliveries, and only if its row is still as the
measurement found it: it fires once and is resolved once, even if several beats run or one dies. A delivery is deleted
after it was made, so it is made at least once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from emsworker.alarms.machine import Step, describe
from emsworker.extending.database import Session, Statements
from emsworker.extending.stream import alarms
from emsworker.extending.values import TARGETS, Alarm, Rule

_SQL = Statements(__name__)
_FRESH_S = 3.0


@dataclass(frozen=True)
class AlarmDelivery:
    """A delivery of one alarm to one receiver.

    Attributes:
        event_id: of its row; 0 if there was no room to write it.
        address: the rule's current URL or command.
        tries: number of earlier tries.
        age_s: seconds since the alarm changed its state.
    """

    event_id: int
    rule: str
    target: str
    body: str
    tries: int
    age_s: float
    address: str


def change(
    session: Session,
    rule: Rule,
    step: Step,
    alarm: Alarm,
    measured_at: datetime,
    reason: str = "",
    told_at: datetime | None = None,
) -> dict[str, Any] | None:
    """Apply a step to an alarm, and write its deliveries in the same transaction.

    Args:
        alarm: the alarm after the step.
        reason: see :func:`describe`.
        told_at: of the alarm before the step; a repeat changes nothing if it is another one by now.

    Returns:
        the notification, or ``None`` if there is none, if another process changed the alarm first, or if the
            measurement is too old.
    """
    args = {
        "rule": rule.name,
        "topic": alarm.topic,
        "group": alarm.group,
        "alarm_id": alarm.alarm_id,
        "value": alarm.value,
        "measured_at": measured_at.replace(tzinfo=None),
        "fresh_s": _FRESH_S,
        "muted": alarm.muted,
        "told_at": told_at.replace(tzinfo=None) if told_at is not None else None,
    }
    statements = {Step.BEGIN: _SQL.begin_alarm, Step.FIRE: _SQL.fire_alarm, Step.REPEAT: _SQL.repeat_alarm}
    statement = statements.get(step, _SQL.end_alarm)

    def work(session: Session) -> dict[str, Any] | None:
        if not alarms.lock_rule(session, rule.name):
            return None
        if session.execute(statement, args).affected != 1 or step.event is None:
            return None
        notification = describe(rule, alarm, step.event, measured_at, reason)
        for target in () if alarm.muted else rule.targets:
            values = {"alarm_id": alarm.alarm_id, "rule": rule.name, "target": target}
            if step is Step.REPEAT and session.rows(_SQL.count_events, values)[0][0]:
                continue  # the receiver has not taken the last one yet
            session.execute(_SQL.add_event, values | {"body": json.dumps(notification)})
        return notification

    return session.transaction(work)


def take_deliveries(session: Session, limit: int, taken_s: float) -> list[AlarmDelivery]:
    """Take at most ``limit`` due deliveries; no other process takes them for ``taken_s`` seconds."""
    taken = []
    for event_id, rule, target, body, tries, age_s, *addresses in session.rows(_SQL.list_due_events, {"limit": limit}):
        args = {"event_id": event_id, "taken_s": taken_s}
        address = dict(zip(TARGETS, addresses, strict=True))[target]
        if session.change(_SQL.take_event, args) == 1:
            taken.append(AlarmDelivery(int(event_id), rule, target, body, int(tries), float(age_s), address or ""))
    return taken


def is_overdue(session: Session, age_s: float) -> bool:
    """Return whether a delivery has not been made for ``age_s`` seconds."""
    return bool(session.rows(_SQL.find_overdue_event, {"age_s": age_s}))


def finish_deliveries(session: Session, event_ids: Iterable[int]) -> None:
    """Delete deliveries that were made or given up."""
    for event_id in event_ids:
        session.change(_SQL.delete_event, {"event_id": event_id})


def postpone_delivery(session: Session, event_id: int, delay_s: float) -> None:
    """Retry a failed delivery after ``delay_s`` seconds."""
    session.change(_SQL.postpone_event, {"event_id": event_id, "delay_s": delay_s})
