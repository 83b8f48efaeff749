"""The alarms of one group in Spark: state that is kept as JSON, and changed by the machine of ``ems alarms``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from emsworker.alarms.machine import GONE, Attempts, Step, advance, describe, evaluate
from emsworker.extending.values import Alarm, Metric, Rule

RULES = {"consume_timeout": Metric.OLDEST, "lag": Metric.LAG, "error_rate": Metric.ERROR_RATE}
"""The rules that can be asked for: each is an option of its name, with the threshold."""


class GroupAlarms:
    """Alarms of one group, with the counts of attempts that error rates are computed from.

    Args:
        rules: the rules; an alarm of any other rule is resolved.
        place: topic and group.
        state: the result of :meth:`dump` after the previous sample.
    """

    def __init__(self, rules: Sequence[Rule], place: tuple[str, str], state: str | None = None) -> None:
        plain = {"alarms": {}, "histories": {}} if state is None else json.loads(state)
        self._rules, self._place = rules, place
        self._alarms = {rule: self._alarm(rule, *alarm) for rule, alarm in plain["alarms"].items()}
        self._histories = {rule: [Attempts(*one) for one in counts] for rule, counts in plain["histories"].items()}

    def _alarm(self, rule: str, since: str, firing: bool) -> Alarm:
        return replace(Alarm.begin(rule, *self._place, 0.0, datetime.fromisoformat(since)), firing=firing)

    def dump(self) -> str:
        """Return the state as JSON."""
        alarms = {rule: (alarm.since.isoformat(), alarm.firing) for rule, alarm in self._alarms.items()}
        histories = {rule: counts for rule, counts in self._histories.items() if counts}
        return json.dumps({"alarms": alarms, "histories": histories})

    def take(self, measured: Mapping[str, Any], now: datetime) -> Iterator[dict[str, Any]]:
        """Apply a sample, and yield the notifications."""
        for rule in self._rules:
            value = measured[rule.name]
            history = self._histories.setdefault(rule.name, [])
            value = evaluate(rule, Attempts(*value) if isinstance(value, list | tuple) else value, history)
            yield from self._advance(rule, value, now)
        yield from self._end({rule.name for rule in self._rules}, now, "the rule is no longer asked for")

    def end(self, now: datetime) -> Iterator[dict[str, Any]]:
        """Resolve all alarms of a group that is gone."""
        return self._end(set(), now, GONE)

    def _end(self, kept: set[str], now: datetime, reason: str) -> Iterator[dict[str, Any]]:
        for name in sorted(set(self._alarms) - kept):
            yield from self._advance(Rule(name, RULES[name]), 0.0, now, reason)

    def _advance(self, rule: Rule, value: float | None, now: datetime, reason: str = "") -> Iterator[dict[str, Any]]:
        for step, alarm in advance(rule, self._alarms.get(rule.name), self._place, value, now):
            self._alarms[rule.name] = alarm
            if step in (Step.FORGET, Step.RESOLVE):
                del self._alarms[rule.name]
            if step.event is not None:
                yield describe(rule, alarm, step.event, now, reason)
