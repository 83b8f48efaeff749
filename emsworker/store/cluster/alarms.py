"""Alarm rules, the alarms that they raised, and silences: what administrators change, and lists show."""

from __future__ import annotations

from emsworker.core.alarms import Alarm, Rule, Silence, find_metric
from emsworker.core.times import utc
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements

_SQL = Statements(__name__)


def lock_rule(session: Session, name: str) -> bool:
    """Lock a rule, as every transaction does that changes it or an alarm of it; return False if it does not exist."""
    return bool(session.rows(_SQL.lock_rule, {"name": name}))


def add_rule(session: Session, rule: Rule, *, replace: bool = False) -> bool:
    """Add a rule; return False if its name is taken and ``replace`` is not set.

    Args:
        replace: first delete a rule of that name, with its alarms and deliveries.
    """

    def work(session: Session) -> bool:
        found = lock_rule(session, rule.name)
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
        Rule(name, find_metric(metric), float(above), float(for_s), float(within_s), int(least), *rest)
        for name, metric, above, for_s, within_s, least, *rest in session.rows(
            _SQL.list_rules if addresses else _SQL.list_rules_only
        )
    ]


def delete_rule(session: Session, name: str) -> bool:
    """Delete a rule with its alarms and deliveries; return False if it does not exist."""

    def work(session: Session) -> bool:
        found = lock_rule(session, name)
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
