"""Rules of alarms: what ``ems alarms`` does."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, fields
from typing import Any

from emsworker.core.alarms import Alarm, Metric, Rule, describe
from emsworker.core.errors import AlreadyExists, ConfigError, DeliveryFailed, Problem, UnknownAlarm
from emsworker.core.options import refuse_unknown
from emsworker.delivery import deliver
from emsworker.store import alarms as store
from emsworker.store.alarms import encode
from emsworker.store.database import Database


@dataclass(frozen=True)
class Watched:
    """A rule and what it has found: breaches that are to last for a while yet, and alarms that fire."""

    rule: Rule
    alarms: tuple[Alarm, ...]

    @property
    def firing(self) -> tuple[Alarm, ...]:
        """Its alarms that fire."""
        return tuple(alarm for alarm in self.alarms if alarm.firing)


class Alarms:
    """The rules of a stream.

    Args:
        database: the stream's.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, name: str, *, on: str, replace: bool = False, **settings: Any) -> Rule:
        """Write a rule; the leading beat goes by it within a second or so.

        Args:
            on: what is measured, see :class:`Rule`.
            replace: put it in the place of one of that name, whose alarms are forgotten.
            settings: ``above``, ``for_s``, ``within_s``, ``topic``, ``group``, ``webhook``, ``command`` of the rule.

        Raises:
            AlreadyExists: there is one of that name.
            ConfigError: naming everything that is wrong.
        """
        if on not in list(Metric):
            raise ConfigError([Problem("on", repr(on), f"must be one of {', '.join(Metric)}")])
        refuse_unknown("alarms.create()", settings, {one.name for one in fields(Rule)} - {"name", "metric"})
        rule = Rule(name, Metric(on), **settings)
        if not self._database.call(lambda session: store.add_rule(session, rule, replace=replace)):
            raise AlreadyExists(f"there is an alarm {name!r} already; replace it, or give this one another name")
        return rule

    def list(self) -> list[Watched]:
        """All rules by name, with what they have found."""
        alarms = self._database.call(store.list_alarms)
        rules = self._database.call(store.list_rules)
        return [Watched(rule, tuple(alarm for alarm in alarms if alarm.rule == rule.name)) for rule in rules]

    def delete(self, name: str) -> None:
        """Delete a rule; its alarms and deliveries are forgotten.

        Raises:
            UnknownAlarm: there is none.
        """
        if not self._database.call(lambda session: store.delete_rule(session, name)):
            raise _unknown(name)

    def test(self, name: str, allowed: Container[str] = ()) -> dict[str, str | None]:
        """Tell the receivers of a rule of a test, from this process; the answer is what went wrong with each.

        Args:
            allowed: the programs that may be run here.

        Raises:
            UnknownAlarm: there is none.
        """
        rules = [rule for rule in self._database.call(store.list_rules) if rule.name == name]
        if not rules:
            raise _unknown(name)
        (rule,) = rules
        now = self._database.call(store.server_now)
        alarm = store.new_alarm(rule, rule.topic or "topic", rule.group or "group", 0.0, now)
        body = encode(describe(rule, alarm, "test", now))
        found: dict[str, str | None] = {}
        for target in rule.targets:
            try:
                deliver(target, getattr(rule, target), body, allowed)
                found[target] = None
            except DeliveryFailed as error:
                found[target] = str(error)
        return found


def _unknown(name: str) -> UnknownAlarm:
    return UnknownAlarm(f"there is no alarm {name!r}; `ems alarms list` shows those that exist")
