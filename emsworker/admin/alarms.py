"""Administration of alarm rules, behind ``ems alarms``."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from emsworker.core.alarms import Alarm, ExtensionMetric, Rule, Silence, find_metric, metric_names
from emsworker.core.errors import AlreadyExists, ConfigError, Problem, UnknownAlarm
from emsworker.core.options import at_most, raise_problems, refuse_unknown, seconds, text
from emsworker.store.cluster import alarms as store
from emsworker.store.engine.database import Database
from emsworker.store.engine.schema import check_extension
from emsworker.store.engine.session import Session

_MAX_REASON = 500


@dataclass(frozen=True)
class Watched:
    """Rule with its alarms: breaches that have not lasted long enough yet, and alarms that fire."""

    rule: Rule
    alarms: tuple[Alarm, ...]

    @property
    def firing(self) -> tuple[Alarm, ...]:
        """Alarms of the rule that fire."""
        return tuple(alarm for alarm in self.alarms if alarm.firing)


class Alarms:
    """Alarm rules of a stream.

    Args:
        database: the database of the stream.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, name: str, *, on: str, replace: bool = False, **settings: Any) -> Rule:
        """Create a rule; the leading beat applies it within about a second.

        Args:
            on: the metric, see :class:`Rule`.
            replace: replace a rule of that name and delete its alarms.
            settings: ``above``, ``for_s``, ``within_s``, ``least``, ``topic``, ``group``, ``repeat_s``, ``webhook``,
                ``slack``, ``alertmanager``, ``command``.

        Raises:
            AlreadyExists: there is a rule of that name.
            ConfigError: naming everything that is wrong.
            SchemaMissing: the database has no tables of the extension that measures it.
        """
        if on not in metric_names():
            raise ConfigError([Problem("on", repr(on), f"must be one of {', '.join(metric_names())}")])
        refuse_unknown("alarms.create()", settings, {one.name for one in fields(Rule)} - {"name", "metric"})
        rule = Rule(name, metric := find_metric(on), **settings)
        if isinstance(metric, ExtensionMetric) and metric.extension is not None:
            self._database.call(partial(check_extension, extension=metric.extension))
        if not self._database.call(lambda session: store.add_rule(session, rule, replace=replace)):
            raise AlreadyExists(f"there is an alarm {name!r} already; replace it, or give this one another name")
        return rule

    def list(self, *, addresses: bool = True) -> list[Watched]:
        """Return all rules with their alarms, sorted by name.

        Args:
            addresses: with their receivers, which only the roles `admin` and `worker` may read.
        """
        alarms = defaultdict[str, list[Alarm]](list)
        for alarm in self._database.call(store.list_alarms):
            alarms[alarm.rule].append(alarm)
        rules = self._database.call(lambda session: store.list_rules(session, addresses=addresses))
        return [Watched(rule, tuple(alarms[rule.name])) for rule in rules]

    def delete(self, name: str) -> None:
        """Delete a rule with its alarms and deliveries.

        Raises:
            UnknownAlarm: there is no such rule.
        """
        if not self._database.call(lambda session: store.delete_rule(session, name)):
            raise _unknown(name)

    def silence(
        self,
        name: str | None = None,
        *,
        for_s: float,
        topic: str | None = None,
        group: str | None = None,
        reason: str = "",
    ) -> Silence:
        """Keep alarms from their receivers for some time; they fire and are resolved all the same.

        An alarm that still fires at the end is sent then. One that fired before is resolved also during the silence.

        Args:
            name: of this rule only.
            for_s: seconds.
            topic, group: for these groups only.
            reason: shown in the list of silences, at most 500 characters.

        Raises:
            UnknownAlarm: there is no such rule.
            ConfigError: the time is none, or the reason too long.
        """
        raise_problems(
            [*seconds(1).problems("for_s", for_s), *text(at_most(_MAX_REASON)).problems("reason", reason or "none")]
        )

        def work(session: Session) -> Silence:
            if name is not None and name not in {rule.name for rule in store.list_rules(session, addresses=False)}:
                raise _unknown(name)
            number = store.add_silence(session, name, topic, group, for_s, reason)
            return next(one for one in store.list_silences(session) if one.silence_id == number)

        return self._database.call(work)

    def silences(self) -> tuple[Silence, ...]:
        """Return the silences that have not ended."""
        return tuple(self._database.call(store.list_silences))

    def unsilence(self, silence_id: int) -> None:
        """End a silence now.

        Raises:
            UnknownAlarm: there is no such silence.
        """
        if not self._database.call(lambda session: store.delete_silence(session, silence_id)):
            raise UnknownAlarm(
                f"there is no silence {silence_id}; `ems alarms silences` shows those that have not ended"
            )


def _unknown(name: str) -> UnknownAlarm:
    return UnknownAlarm(f"there is no alarm {name!r}; `ems alarms list` shows those that exist")
