"""Beat service that watches groups by the alarm rules and notifies receivers.

Each delivery runs in a thread of its own, a few at once: a receiver that hangs blocks neither the other services nor
other receivers. Their outcomes are written down at the next run of the service.
"""

from __future__ import annotations

import logging
import queue
import threading
from dataclasses import replace
from datetime import datetime

from emsworker.admin.receivers import LONGEST_S, deliver
from emsworker.core.alarms import Alarm, Rule, Step, next_step
from emsworker.core.config import Settings
from emsworker.core.errors import EmsError
from emsworker.core.process.clock import ticks
from emsworker.core.url import redact
from emsworker.store.cluster import alarms as store
from emsworker.store.cluster.alarms import AlarmDelivery
from emsworker.store.engine.session import Session

log = logging.getLogger(__name__)

_AT_ONCE = 16
_FLYING_LOOK_S = 0.1
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 600.0
_GIVE_UP_S = 86400.0
_NONE_BEATS = 5
_SHARE = 10  # measuring takes at most a tenth of the time


class WatchAlarms:
    """The alarm service; it uses no app, only the rules that ``ems alarms create`` has written."""

    def __init__(self) -> None:
        self._back: queue.SimpleQueue[tuple[AlarmDelivery, str | None]] = queue.SimpleQueue()
        self._flying = 0
        self._next_watch = 0.0
        self._has_rules = False  # without a rule there is nothing to deliver

    def __call__(self, session: Session, settings: Settings) -> float:
        """Measure if it is time, start due deliveries, and record finished ones."""
        if ticks() >= self._next_watch:
            began = ticks()
            self._has_rules = _watch(session)
            pause_s = settings.beat_s if self._has_rules else _NONE_BEATS * settings.beat_s
            self._next_watch = ticks() + max(pause_s, _SHARE * (ticks() - began))
        self._land(session)
        if self._has_rules and self._flying < _AT_ONCE:
            for delivery in store.take_deliveries(session, _AT_ONCE - self._flying, LONGEST_S):
                self._send(delivery, settings.alarm_commands)
        return _FLYING_LOOK_S if self._flying else settings.beat_s

    def _send(self, delivery: AlarmDelivery, allowed: tuple[str, ...]) -> None:
        def run() -> None:
            problem = None
            try:
                deliver(delivery.target, delivery.address, delivery.body, allowed)
            except EmsError as error:
                problem = str(error)
            except Exception as error:  # on any error the delivery is retried, so the thread must report it
                problem = redact(repr(error))
            self._back.put((delivery, problem))

        self._flying += 1
        threading.Thread(target=run, name=f"ems-alarm-{delivery.event_id}", daemon=True).start()

    def _land(self, session: Session) -> None:
        while not self._back.empty():
            delivery, problem = self._back.get()
            self._flying -= 1
            if problem is None:
                store.finish_deliveries(session, [delivery.event_id])
            else:
                _try_again(session, delivery, problem)


def _try_again(session: Session, delivery: AlarmDelivery, problem: str) -> None:
    if delivery.age_s > _GIVE_UP_S:
        log.error("alarm %s: given up after a day: %s: %s", delivery.rule, problem, delivery.body)
        store.finish_deliveries(session, [delivery.event_id])
        return
    pause_s = min(_FIRST_PAUSE_S * 2.0 ** min(delivery.tries, 20), _LONGEST_PAUSE_S)
    log.warning("alarm %s: %s; tried again in %g s", delivery.rule, problem, pause_s)
    store.postpone_delivery(session, delivery.event_id, pause_s)


def _watch(session: Session) -> bool:
    """Measure all rules once; return whether there are any."""
    rules = store.list_rules(session)
    if not rules:
        return False
    now = store.server_now(session)
    values = store.measure(session, rules)
    known = {(alarm.rule, alarm.topic, alarm.group): alarm for alarm in store.list_alarms(session)}
    for rule in rules:
        measured = values[rule.name]
        gone = {(topic, group) for name, topic, group in known if name == rule.name} - set(measured)
        for (topic, group), value in [*measured.items(), *((place, 0.0) for place in gone)]:
            _judge(session, rule, known.get((rule.name, topic, group)), topic, group, value, now)
    return True


def _judge(
    session: Session, rule: Rule, alarm: Alarm | None, topic: str, group: str, value: float, now: datetime
) -> None:
    """Take the steps that a value calls for: a breach that need not last begins and fires at once."""
    for _ in range(2):
        step = next_step(rule, alarm, value, now)
        if step is None:
            return
        alarm = store.new_alarm(rule, topic, group, value, now) if alarm is None else replace(alarm, value=value)
        told = store.change(session, rule, step, alarm, now)
        if told is not None:
            log.warning("alarm %s", told["text"])
        if rule.for_s or step is not Step.BEGIN:
            return
