"""A test message to the receivers of an alarm rule."""

from __future__ import annotations

import json
from collections.abc import Container

from emsworker.alarms.machine import describe
from emsworker.alarms.receivers import deliver
from emsworker.extending.apps import Ems
from emsworker.extending.database import Database, server_now
from emsworker.extending.errors import DeliveryFailed, UnknownAlarm
from emsworker.extending.stream import alarms
from emsworker.extending.values import Alarm


def send_test(
    stream: Ems | Database, name: str, allowed: Container[str] = (), secret: str | None = None
) -> dict[str, str | None]:
    """Send a test to the receivers of a rule, from this process; return the error of each, ``None`` for success.

    Args:
        stream: an app, or its database.
        name: of the rule.
        allowed: the programs that may be run here.
        secret: signs what a webhook gets.

    Raises:
        UnknownAlarm: there is no such rule.
    """
    database = stream.stream.database if isinstance(stream, Ems) else stream
    rules = [rule for rule in database.call(alarms.list_rules) if rule.name == name]
    if not rules:
        raise UnknownAlarm(f"there is no alarm {name!r}; `ems alarms list` shows those that exist")
    (rule,) = rules
    now = database.call(server_now)
    alarm = Alarm.begin(rule.name, rule.topic or "topic", rule.group or "group", 0.0, now)
    body = json.dumps(describe(rule, alarm, "test", now))
    found: dict[str, str | None] = {}
    for target in rule.targets:
        try:
            deliver(target, getattr(rule, target), body, allowed, secret)
            found[target] = None
        except DeliveryFailed as error:
            found[target] = str(error)
    return found
