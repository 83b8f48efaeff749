"""The rules of alerts, without Spark."""

from collections.abc import Iterable

from emsworker.spark.jobs.alerts.watching import AlertLimits, Event, GroupSample, State, as_plain, end, from_plain, step

KEY = ("orders", "sellers")
S = 1_000_000


def look(
    at_s: float, lag: int = 0, oldest_s: float | None = None, position: int = 0, failed: int = 0, retried: int = 0
) -> GroupSample:
    return GroupSample(round(at_s * S), lag, oldest_s, position, failed, retried)


def told(state: State, looks: Iterable[GroupSample], limits: AlertLimits) -> list[Event]:
    return [event for one in looks for event in step(KEY, state, one, limits)]


def names(events: Iterable[Event]) -> list[tuple[str, str, int]]:
    return [(event.state, event.rule, event.at // S) for event in events]


def test_a_breach_is_told_once_and_its_end_once() -> None:
    limits = AlertLimits({"lag": 10.0})
    events = told(State(), [look(1, 10), look(2, 11), look(3, 500), look(4, 11), look(5, 10), look(6, 0)], limits)
    assert names(events) == [("firing", "lag", 2), ("resolved", "lag", 5)]
    assert events[0].alert == events[1].alert and events[0].id != events[1].id
    assert (events[0].value, events[0].limit, events[0].since) == (11.0, 10.0, 2 * S)


def test_another_breach_is_another_alert() -> None:
    first, _, second, _ = told(State(), [look(n, 20 * (n % 2)) for n in (1, 2, 3, 4)], AlertLimits({"lag": 10.0}))
    assert first.alert != second.alert


def test_the_same_looks_give_the_same_ids() -> None:
    looks = [look(1, 20), look(2, 0)]
    limits = AlertLimits({"lag": 10.0})
    assert told(State(), looks, limits) == told(State(), looks, limits)


def test_a_breach_must_last() -> None:
    limits = AlertLimits({"consume_timeout": 5.0}, for_s=3.0)
    state = State()
    assert names(told(state, [look(1, 1, 6.0), look(3, 1, 8.0)], limits)) == []
    assert names(told(state, [look(3.5, 0)], limits)) == [], "what was not told is not resolved"
    assert names(told(state, [look(4, 1, 6.0), look(6, 1, 8.0), look(7, 1, 9.0), look(9, 0)], limits)) == [
        ("firing", "consume_timeout", 7),
        ("resolved", "consume_timeout", 9),
    ]


def test_the_error_rate_is_of_all_attempts_in_the_span() -> None:
    limits = AlertLimits({"error_rate": 0.5}, within_s=10.0, least=4)
    state = State()
    assert told(state, [look(0, position=100, failed=50)], limits) == [], "the first look is the base"
    assert told(state, [look(1, position=103, failed=3)], limits) == [], "3 attempts are too few"
    (firing,) = told(state, [look(2, position=104, failed=1, retried=1)], limits)
    assert firing.value == 4 / 5
    (resolved,) = told(state, [look(3, position=120)], limits)
    assert resolved.value == 4 / 21
    assert told(state, [look(20, position=120)], limits) == []
    assert state.points[0][0] == 3 * S, "what is older than the span is forgotten, but for its base"


def test_the_history_stays_short() -> None:
    limits = AlertLimits({"error_rate": 0.5}, within_s=100.0)
    state = State()
    told(state, [look(n / 10, position=n, failed=1) for n in range(2000)], limits)
    assert len(state.points) < 120
    inside = sum(point[2] for point in state.points[1:])
    assert abs(inside - 1000) <= 20


def test_a_rule_that_is_taken_away_is_resolved() -> None:
    state = State()
    told(state, [look(1, 20)], AlertLimits({"lag": 10.0}))
    (event,) = told(state, [look(2, 20)], AlertLimits({"consume_timeout": 9.0}))
    assert (event.state, event.rule, event.reason) == ("resolved", "lag", "the rule is no longer asked for")


def test_a_group_that_is_gone_is_resolved() -> None:
    state = State()
    told(state, [look(1, 20, 7.0)], AlertLimits({"lag": 10.0, "consume_timeout": 5.0}, for_s=0.0))
    assert [(event.state, event.rule, event.value) for event in end(KEY, state, 9 * S)] == [
        ("resolved", "consume_timeout", None),
        ("resolved", "lag", None),
    ]


def test_the_state_survives_json() -> None:
    import json

    state = State()
    told(state, [look(1, 20, position=4, failed=1), look(2, 20)], AlertLimits({"lag": 10.0}))
    assert from_plain(json.loads(json.dumps(as_plain(state)))) == state
