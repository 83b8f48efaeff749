"""The state machine of alarms, and the alarms of one group as the Spark job keeps them."""

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from emsworker.alarms.machine import Attempts, Step, advance, evaluate
from emsworker.alarms.receivers import deliver
from emsworker.core.alarms import Alarm, Metric, Rule, parse_share
from emsworker.core.errors import ConfigError, DeliveryFailed
from emsworker.spark.jobs.alerts.group_alarms import GroupAlarms

PLACE = ("orders", "sellers")
START = datetime(2026, 11, 21, tzinfo=UTC)
LAG = Rule("lag", Metric.LAG, 10.0)


def steps(rule: Rule, *values: tuple[float, float | None]) -> list[tuple[Step, float]]:
    """Each step, and the second at which it was taken."""
    found: list[tuple[Step, float]] = []
    alarm: Alarm | None = None
    for second, value in values:
        for step, after in advance(rule, alarm, PLACE, value, START + timedelta(seconds=second)):
            found.append((step, second))
            alarm = None if step in (Step.FORGET, Step.RESOLVE) else after
    return found


def test_a_breach_fires_once_and_is_resolved_once() -> None:
    assert steps(LAG, (1, 10), (2, 11), (3, 500), (4, 11), (5, 10), (6, 0)) == [
        (Step.BEGIN, 2),
        (Step.FIRE, 2),
        (Step.RESOLVE, 5),
    ]


def test_a_breach_must_last() -> None:
    rule = replace(LAG, for_s=3.0)
    assert steps(rule, (1, 11), (3, 11), (3.5, 0)) == [(Step.BEGIN, 1), (Step.FORGET, 3.5)]
    assert steps(rule, (4, 11), (6, 11), (7, 12), (9, 0)) == [(Step.BEGIN, 4), (Step.FIRE, 7), (Step.RESOLVE, 9)]


def test_what_cannot_be_measured_changes_nothing() -> None:
    assert steps(LAG, (1, None), (2, 11), (3, None), (4, 0)) == [(Step.BEGIN, 2), (Step.FIRE, 2), (Step.RESOLVE, 4)]


def test_the_id_of_an_alarm_follows_from_its_beginning() -> None:
    first = Alarm.begin("lag", *PLACE, 11, START)
    assert first.alarm_id == Alarm.begin("lag", *PLACE, 500, START).alarm_id
    assert first.alarm_id != Alarm.begin("lag", *PLACE, 11, START + timedelta(microseconds=1)).alarm_id


def test_the_error_rate_is_of_all_attempts_in_the_period() -> None:
    rule = Rule("errors", Metric.ERROR_RATE, 0.5, within_s=10.0, least=4)
    history: list[Attempts] = []
    assert evaluate(rule, Attempts(0, 100, 50, 0), history) is None, "the first count is the base"
    assert evaluate(rule, Attempts(1, 103, 3, 0), history) is None, "3 attempts are too few"
    assert evaluate(rule, Attempts(2, 104, 1, 1), history) == 4 / 5
    assert evaluate(rule, Attempts(3, 120, 0, 0), history) == 4 / 21
    assert evaluate(rule, Attempts(20, 120, 0, 0), history) == 0.0
    assert history[0].at == 3, "what is older than the period is forgotten, but for its base"


def test_a_threshold_has_the_unit_of_its_metric() -> None:
    for metric, above in (("retries", 0.05), ("lag", "5m"), ("error_rate", 5), ("stuck", float("nan"))):
        with pytest.raises(ConfigError, match=f"above = .*of {metric} must be a"):
            Rule("x", Metric(metric), above)  # type: ignore[arg-type]
    assert Rule("x", Metric.OLDEST, 0.5).above == 0.5 and Rule("x", Metric.LAG, 10**12).above == 10**12


def test_the_history_stays_short() -> None:
    rule = Rule("errors", Metric.ERROR_RATE, 0.5, within_s=100.0)
    history: list[Attempts] = []
    for n in range(2000):
        evaluate(rule, Attempts(n / 10, n, 1, 0), history)
    assert len(history) < 120
    assert abs(sum(one.failed for one in history[1:]) - 1000) <= 20


@pytest.mark.parametrize(("text", "share"), [("0.05", 0.05), ("5%", 0.05), (".5", 0.5), ("0", 0.0)])
def test_shares(text: str, share: float) -> None:
    assert parse_share(text) == share
    with pytest.raises(ValueError, match="must be a share"):
        parse_share(f"{text}1x")


# -- the state that Spark keeps ----------------------------------------------------------------------------------------


def told(rules: list[Rule], samples: Iterable[tuple[float, dict[str, Any]]], state: str | None = None) -> Any:
    """The notifications, and the state after them; it is written down and read again at each sample."""
    found: list[dict[str, Any]] = []
    for second, measured in samples:
        alarms = GroupAlarms(rules, PLACE, state)
        found += alarms.take(measured, START + timedelta(seconds=second))
        state = alarms.dump()
    return found, state


def test_the_same_samples_give_the_same_notifications() -> None:
    samples = [(1.0, {"lag": 20}), (2.0, {"lag": 0}), (3.0, {"lag": 20})]
    found, _ = told([LAG], samples)
    assert [(one["event"], one["rule"], one["metric"], one["value"]) for one in found] == [
        ("firing", "lag", "lag", 20),
        ("resolved", "lag", "lag", 0),
        ("firing", "lag", "lag", 20),
    ]
    assert found[0]["id"] == found[1]["id"] != found[2]["id"]
    assert told([LAG], samples)[0] == found


def test_counts_of_attempts_are_part_of_the_state() -> None:
    rule = Rule("error_rate", Metric.ERROR_RATE, 0.3, least=4)
    found, _ = told([rule], [(1, {"error_rate": [1, 0, 0, 0]}), (2, {"error_rate": [2, 10, 4, 0]})])
    assert [(one["event"], one["value"]) for one in found] == [("firing", 0.4)]


def test_a_rule_that_is_taken_away_and_a_group_that_is_gone_are_resolved() -> None:
    _, state = told([LAG], [(1, {"lag": 20})])
    (event,), after = told([Rule("consume_timeout", Metric.OLDEST, 9.0)], [(2, {"consume_timeout": 1})], state)
    assert (event["event"], event["text"]) == ("resolved", "lag resolved: the rule is no longer asked for")
    assert after == told([LAG], [(1, {"lag": 0})])[1]
    (event,) = GroupAlarms([LAG], PLACE, state).end(START)
    assert (event["event"], event["text"]) == ("resolved", "lag resolved: the group is gone")


def test_a_program_that_leaves_another_one_running_is_not_waited_for(tmp_path: Path) -> None:
    program = tmp_path / "tell"
    program.write_text('#!/bin/sh\nsleep 300 &\necho $! > "$0.pid"\necho no room >&2\nexit 3\n')
    program.chmod(0o700)
    began = time.monotonic()
    try:
        with pytest.raises(DeliveryFailed, match="ended with 3: no room"):
            deliver("command", str(program), "{}", [str(program)])
        assert time.monotonic() - began < 15, "the other one has its standard error still open"
    finally:
        os.kill(int((tmp_path / "tell.pid").read_text()), signal.SIGKILL)
