"""Alarm rules, the alarms that they raised, and the deliveries still to be made.

An alarm changes its state in the transaction that writes its deliveries, and only if its row is still as the
measurement found it: it fires once and is resolved once, even if several beats run or one dies. A delivery is deleted
after it was made, so it is made at least once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from emsworker.core.alarms import STREAM, TARGETS, Alarm, Attempts, Metric, Rule, Silence, Step, describe
from emsworker.core.times import utc
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements
from emsworker.store.stream.intake import count_refused

_SQL = Statements(__name__)
_FRESH_S = 3.0

Values = dict[tuple[str, str], float | Attempts]


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


@dataclass
class _Group:
    """Measurements of a group at one moment."""

    topic: str
    name: str
    id: int
    idle: bool
    position: int = 0
    unclaimed: int = 0
    claimed: int = 0
    working: int = 0
    stuck_s: float = 0.0
    age_s: float = 0.0


def add_rule(session: Session, rule: Rule, *, replace: bool = False) -> bool:
    """Add a rule; return False if its name is taken and ``replace`` is not set.

    Args:
        replace: first delete a rule of that name, with its alarms and deliveries.
    """

    def work(session: Session) -> bool:
        found = bool(session.rows(_SQL.lock_rule, {"name": rule.name}))
        if found and not replace:
            return False
        if found:
            _delete_rule(session, rule.name)
        session.execute(_SQL.add_rule, vars(rule) | {"metric": rule.metric.value})
        return True

    return session.transaction(work)


def list_rules(session: Session, *, addresses: bool = True) -> list[Rule]:
    """Return all rules, ordered by name.

    Args:
        addresses: with their receivers; otherwise the rules have none.
    """
    return [
        Rule(name, Metric(metric), float(above), float(for_s), float(within_s), int(least), *rest)
        for name, metric, above, for_s, within_s, least, *rest in session.rows(
            _SQL.list_rules if addresses else _SQL.list_rules_only
        )
    ]


def delete_rule(session: Session, name: str) -> bool:
    """Delete a rule with its alarms and deliveries; return False if it does not exist."""

    def work(session: Session) -> bool:
        found = bool(session.rows(_SQL.lock_rule, {"name": name}))
        _delete_rule(session, name)
        return found

    return session.transaction(work)


def _delete_rule(session: Session, name: str) -> None:
    session.execute(_SQL.delete_rule, {"name": name})
    session.execute(_SQL.delete_alarms, {"name": name})
    for (event_id,) in session.rows(_SQL.list_events_of_rule, {"name": name}):
        session.execute(_SQL.delete_event, {"event_id": event_id})


def list_alarms(session: Session) -> list[Alarm]:
    """Return all alarms that are pending or firing."""
    return [
        Alarm(
            rule,
            topic,
            group,
            alarm_id,
            bool(firing),
            float(value),
            utc(since),
            utc(fired_at) if fired_at else None,
            utc(told_at) if told_at else None,
            muted=bool(firing) and told_at is None,
        )
        for rule, topic, group, alarm_id, firing, value, since, fired_at, told_at in session.rows(_SQL.list_alarms)
    ]


# -- silences ----------------------------------------------------------------------------------------------------------


def list_firing(session: Session) -> list[tuple[str, str, str]]:
    """Return rule, topic and group of each alarm that fires; the last two are empty for an alarm of the stream."""
    return [(rule, topic, group) for rule, topic, group in session.rows(_SQL.list_firing)]


def add_silence(
    session: Session, rule: str | None, topic: str | None, group: str | None, for_s: float, reason: str
) -> int:
    """Add a silence and return its number; delete those that have ended."""
    args = {"rule": rule, "topic": topic, "group": group, "for_s": for_s, "reason": reason}

    def work(session: Session) -> int:
        session.execute(_SQL.delete_ended_silences)
        return session.execute(_SQL.add_silence, args).insert_id

    return session.transaction(work)


def list_silences(session: Session) -> list[Silence]:
    """Return the silences that have not ended."""
    return [
        Silence(int(silence_id), rule, topic, group, reason, utc(ends_at))
        for silence_id, rule, topic, group, reason, ends_at in session.rows(_SQL.list_silences)
    ]


def delete_silence(session: Session, silence_id: int) -> bool:
    """End a silence; return False if there is none of that number."""
    return session.change(_SQL.delete_silence, {"silence_id": silence_id}) == 1


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure(
    session: Session, rules: Sequence[Rule], now: datetime, since: datetime | None = None, *, locked_s: float = 0.0
) -> dict[str, Values]:
    """Return each rule's value for each group that it covers, or for the stream; read only what the rules need.

    Args:
        now: the server's time.
        since: the time of the previous measurement, from which on attempts are counted; ``None`` for the first.
        locked_s: the seconds for which a lock has held up others, as the beat has seen it.
    """
    groups = _read_groups(session, any(rule.metric is Metric.OLDEST for rule in rules))
    found: dict[str, Values] = {}
    for rule in rules:
        if rule.metric is Metric.LOCKED:
            found[rule.name] = {STREAM: locked_s}
            continue
        if rule.metric.of_stream:
            full = rule.metric is Metric.DISK_FULL
            value = session.full_s if full else float(count_refused(session, int(rule.above) + 1))
            found[rule.name] = {STREAM: value}
            continue
        covered = [group for group in groups if rule.covers(group.topic, group.name)]
        values = {(group.topic, group.name): _value(session, rule, group, now, since or now) for group in covered}
        found[rule.name] = values
    return found


def _value(session: Session, rule: Rule, group: _Group, now: datetime, since: datetime) -> float | Attempts:
    limit = {"group_id": group.id, "limit": int(rule.above) + 1, "within_s": rule.within_s}
    match rule.metric:
        case Metric.LAG:
            return group.unclaimed + group.claimed
        case Metric.OLDEST:
            return group.age_s
        case Metric.STUCK:
            return group.stuck_s
        case Metric.NO_CONSUMER:
            return 0 if group.idle or group.working else group.unclaimed + group.claimed
        case Metric.RETRIES:
            return float(session.rows(_SQL.count_retries, limit)[0][0])
        case Metric.DEAD:
            return float(session.rows(_SQL.count_dead, limit)[0][0])
        case Metric.ERROR_RATE:
            span = {"group_id": group.id, "since": since.replace(tzinfo=None), "until": now.replace(tzinfo=None)}
            failed, retried = session.rows(_SQL.count_attempts, span)[0]
            return Attempts(now.timestamp(), group.position, int(failed), int(retried))
        case Metric.REFUSED | Metric.LOCKED | Metric.DISK_FULL:
            raise AssertionError("it is no group's")


def _read_groups(session: Session, with_ages: bool) -> list[_Group]:
    packet = session.packet()
    packet.add(_SQL.list_backlogs)
    packet.add(_SQL.list_claims)
    backlogs, claims = (result.rows for result in packet.send())
    claims_by = {(row[0], row[1]): row[2:] for row in claims}
    groups: dict[int, _Group] = {}
    oldest: list[tuple[_Group, dict[str, int]]] = []
    for topic, name, group_id, topic_id, idle, partition, cursor, last, retry in backlogs:
        group = groups.setdefault(group_id, _Group(topic, name, group_id, bool(idle)))
        claimed, first_claimed, working, stuck_s = claims_by.get((group_id, partition), (0, None, 0, 0))
        unclaimed = max(0, int(last) - int(cursor) + 1)
        group.position += int(cursor)
        group.unclaimed += unclaimed
        group.claimed += int(claimed)
        group.working += int(working)
        group.stuck_s = max(group.stuck_s, float(stuck_s))
        unfinished = [cursor if unclaimed else None, first_claimed if claimed else None, retry]
        lowest = min((int(offset) for offset in unfinished if offset is not None), default=None)
        if lowest is not None:
            oldest.append((group, {"topic_id": topic_id, "partition": partition, "offset": lowest}))
    if with_ages and oldest:
        packet = session.packet()
        for _, place in oldest:
            packet.add(_SQL.get_age, place)
        for (group, _), result in zip(oldest, packet.send(), strict=True):
            group.age_s = max(group.age_s, float(result.rows[0][0]) if result.rows else 0.0)
    return list(groups.values())


# -- changing ----------------------------------------------------------------------------------------------------------


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
        if not session.rows(_SQL.lock_rule, {"name": rule.name}):
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


# -- delivering --------------------------------------------------------------------------------------------------------


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
