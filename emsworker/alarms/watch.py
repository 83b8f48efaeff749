"""Beat service that watches groups by the alarm rules and notifies receivers.

Each delivery runs in a thread of its own, a few at once: a receiver that hangs blocks neither the other services nor
other receivers. Their outcomes are written down at the next run of the service.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from datetime import datetime, timedelta
from typing import Any

from emsworker.alarms import deliveries
from emsworker.alarms.deliveries import AlarmDelivery
from emsworker.alarms.machine import GONE, Attempts, Step, advance, describe, evaluate
from emsworker.alarms.measurements import measure
from emsworker.extending.database import Session, server_now
from emsworker.extending.declaration import WatchLocks
from emsworker.extending.errors import DiskFull, EmsError
from emsworker.extending.processes import ticks
from emsworker.extending.settings import Settings, redact
from emsworker.extending.stream import alarms
from emsworker.extending.values import Alarm, ExtensionMetric, Metric, Rule

log = logging.getLogger(__name__)

_AT_ONCE = 16
_DELIVERING_S = 0.1
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 600.0
_GIVE_UP_S = 86400.0
_NONE_BEATS = 5
_LONGEST_GAP = timedelta(minutes=1)  # a beat that did not lead for longer forgets what it counted
_SHARE = 10  # measuring takes at most a tenth of the time


class WatchAlarms:
    """The alarm service; it uses no app, only the rules that ``ems alarms create`` has written.

    Args:
        locks: the service that watches locks.
    """

    def __init__(self, locks: WatchLocks | None = None) -> None:
        self._locks = locks or WatchLocks()
        self._back: queue.SimpleQueue[tuple[AlarmDelivery, str | None]] = queue.SimpleQueue()
        self._flying = 0
        self._next_watch = 0.0
        self._has_rules = False  # without a rule there is nothing to deliver
        self._measured_at: datetime | None = None
        self._histories: dict[tuple[str, tuple[str, str]], list[Attempts]] = {}
        self._unwritten: dict[tuple[str, tuple[str, str]], Alarm] = {}  # the server has no room for them
        self._told: set[tuple[bytes, Step]] = set()  # of these alarms, without a row

    def __call__(self, session: Session, settings: Settings) -> float:
        """Measure if it is time, start due deliveries, and record finished ones."""
        if ticks() >= self._next_watch:
            began = ticks()
            self._has_rules = self._watch(session, settings)
            pause_s = settings.beat_s if self._has_rules else _NONE_BEATS * settings.beat_s
            self._next_watch = ticks() + max(pause_s, _SHARE * (ticks() - began))
        self._land(session)
        if self._has_rules and self._flying < _AT_ONCE:
            from emsworker.alarms.receivers import LONGEST_S  # and HTTP, which a beat without alarms does without

            for delivery in deliveries.take_deliveries(session, _AT_ONCE - self._flying, LONGEST_S):
                self._send(delivery, settings)
        return _DELIVERING_S if self._flying else settings.beat_s

    def _watch(self, session: Session, settings: Settings) -> bool:
        """Measure all rules once, and change the alarms; return whether there are rules."""
        rules = alarms.list_rules(session)
        if not rules:
            return False
        now = server_now(session)
        if self._measured_at is not None and now - self._measured_at > _LONGEST_GAP:
            self._measured_at, self._histories = None, {}
        values = measure(session, rules, now, self._measured_at, locked_s=self._locks.held_s)
        self._measured_at, before, self._histories = now, self._histories, {}
        silences = alarms.list_silences(session)
        known = {(alarm.rule, (alarm.topic, alarm.group)): alarm for alarm in alarms.list_alarms(session)}
        if not session.full:  # they fire again, now to be written; only that of the disk is over
            disk = {rule.name for rule in rules if rule.metric is Metric.DISK_FULL}
            self._unwritten = {key: alarm for key, alarm in self._unwritten.items() if key[0] in disk}
        known = self._unwritten | known
        for rule in (one for one in rules if one.name in values):  # alarms of what is not measured stay as they are
            gone = {place for name, place in known if name == rule.name} - set(values[rule.name])
            for place, measured in [*values[rule.name].items(), *((place, 0.0) for place in gone)]:
                history = self._histories[rule.name, place] = before.get((rule.name, place), [])
                value = evaluate(rule, measured, history)
                current = known.get((rule.name, place))
                silenced = any(silence.covers(rule.name, *place) for silence in silences)
                for step, alarm in advance(rule, current, place, value, now, silenced=silenced):
                    told_at = current.told_at if current is not None else None
                    why = GONE if place in gone and not isinstance(rule.metric, ExtensionMetric) else ""
                    try:
                        if (rule.name, place) in self._unwritten:
                            notification = self._change_unwritten(rule, step, alarm, now, settings)
                        else:
                            notification = deliveries.change(session, rule, step, alarm, now, why, told_at)
                    except DiskFull:
                        notification = self._change_unwritten(rule, step, alarm, now, settings)
                    if notification is not None:
                        log.warning("alarm %s%s", notification["text"], " (silenced)" if alarm.muted else "")
        return True

    def _change_unwritten(
        self, rule: Rule, step: Step, alarm: Alarm, now: datetime, settings: Settings
    ) -> dict[str, Any] | None:
        """Change an alarm in memory, and notify its receivers at once: a full disk must not hide itself."""
        key = rule.name, (alarm.topic, alarm.group)
        self._unwritten[key] = alarm
        if step in (Step.RESOLVE, Step.FORGET):
            del self._unwritten[key]
        if step.event is None or (alarm.alarm_id, step) in self._told:
            return None
        self._told = {told for told in self._told if told[0] == alarm.alarm_id} if step is Step.RESOLVE else self._told
        self._told.add((alarm.alarm_id, step))
        notification = describe(rule, alarm, step.event, now)
        for target in () if alarm.muted else rule.targets:
            body, address = json.dumps(notification), getattr(rule, target)
            self._send(AlarmDelivery(0, rule.name, target, body, 0, 0.0, address), settings)
        return notification

    def _send(self, delivery: AlarmDelivery, settings: Settings) -> None:
        from emsworker.alarms.receivers import deliver

        def run() -> None:
            problem = None
            try:
                deliver(
                    delivery.target,
                    delivery.address,
                    delivery.body,
                    settings.alarm_commands,
                    settings.alarm_secret,
                )
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
            if not delivery.event_id:
                if problem is not None:
                    log.warning("alarm %s: %s; it has no row, and is not tried again", delivery.rule, problem)
            elif problem is None:
                deliveries.finish_deliveries(session, [delivery.event_id])
            else:
                _try_again(session, delivery, problem)


def _try_again(session: Session, delivery: AlarmDelivery, problem: str) -> None:
    if delivery.age_s > _GIVE_UP_S:
        log.error("alarm %s: given up after a day: %s: %s", delivery.rule, problem, delivery.body)
        deliveries.finish_deliveries(session, [delivery.event_id])
        return
    pause_s = min(_FIRST_PAUSE_S * 2.0 ** min(delivery.tries, 20), _LONGEST_PAUSE_S)
    log.warning("alarm %s: %s; tried again in %g s", delivery.rule, problem, pause_s)
    deliveries.postpone_delivery(session, delivery.event_id, pause_s)
