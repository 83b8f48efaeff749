"""When a periodic task is due, over the changes of the clocks too."""

from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest

from emsworker import Ems
from emsworker.core.errors import ConfigError
from emsworker.core.schedule import MOST_SLOTS, due_slots, interval_spec, parse_timetable, slot_uid

GRACE_S = 11.0


def _utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def _after(spec: str, zone: str, when: str, count: int) -> list[str]:
    slots = islice(parse_timetable(spec, zone).after(_utc(when)), count)
    return [slot.strftime("%d %H:%M") for slot in slots]


def test_cron_goes_by_the_clocks_of_its_zone() -> None:
    assert _after("0 9 * * *", "Europe/Berlin", "2026-01-10", 1) == ["10 08:00"]
    assert _after("0 9 * * *", "Europe/Berlin", "2026-07-10", 1) == ["10 07:00"]
    assert _after("*/5 * * * *", "UTC", "2026-01-10T00:04:59", 2) == ["10 00:05", "10 00:10"]
    assert _after("0 0 * * mon#1", "UTC", "2026-01-10", 1) == ["02 00:00"]


def test_a_time_that_the_clocks_skip_runs_once_after_the_gap() -> None:
    # In Berlin on 2026-03-29 02:00 is followed by 03:00, which is 01:00 UTC.
    assert _after("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00", 3) == ["28 01:30", "29 01:00", "30 00:30"]
    assert _after("0 * * * *", "Europe/Berlin", "2026-03-28T23:30", 3) == ["29 00:00", "29 01:00", "29 02:00"]


def test_a_time_that_comes_twice_runs_once_and_intervals_go_on() -> None:
    # In Berlin on 2026-10-25 03:00 is followed by 02:00; 02:30 is 00:30 and 01:30 UTC.
    assert _after("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", 2) == ["25 00:30", "26 01:30"]
    assert _after("30 2 * * *", "Europe/Berlin", "2026-10-25T00:30", 1) == ["26 01:30"]
    assert _after("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10", 1) == ["26 01:30"], "in the second pass"
    assert _after("*/30 * * * *", "Europe/Berlin", "2026-10-24T23:45", 5) == [
        "25 00:00", "25 00:30", "25 01:00", "25 01:30", "25 02:00",
    ]  # fmt: skip


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago"])
@pytest.mark.parametrize("spec", ["30 2 * * *", "0,30 1-3 * * *", "*/15 * * * *", "0 0 * * *", "5 */2 * * *"])
def test_asking_after_each_slot_gives_the_same_slots_as_one_series(spec: str, zone: str) -> None:
    """The beat asks anew after every slot; none may be lost or come twice, in a year of changes of the clocks."""
    timetable = parse_timetable(spec, zone)
    begin = _utc("2026-01-01")
    series = list(islice(timetable.after(begin), 3000))
    assert series == sorted(set(series))
    for before, slot in zip([begin, *series], series, strict=False):
        assert next(timetable.after(before)) == slot
        between = before + (slot - before) / 2
        assert next(timetable.after(between)) == slot


def test_intervals_are_the_same_for_everybody() -> None:
    timetable = parse_timetable(interval_spec(30.0), "UTC")
    slots = list(islice(timetable.after(_utc("2026-01-01T00:00:10")), 3))
    assert [slot.second for slot in slots] == [30, 0, 30]
    assert next(timetable.after(slots[0])) == slots[1]
    odd = parse_timetable(interval_spec(1.7), "UTC")
    first = next(odd.after(_utc("2026-01-01")))
    assert next(odd.after(first)) - first == timedelta(seconds=1.7)


def _due(spec: str, next_at: str, now: str, catch_up: str) -> tuple[list[str], str]:
    slots, following = due_slots(parse_timetable(spec, "UTC"), _utc(next_at), _utc(now), catch_up, GRACE_S)
    return [slot.strftime("%d %H:%M:%S") for slot in slots], following.strftime("%d %H:%M:%S")


def test_what_is_missed_goes_by_the_policy() -> None:
    hourly, begin, now = "0 * * * *", "2026-01-01T00:00", "2026-01-01T03:20"
    assert _due(hourly, begin, now, "last") == (["01 03:00:00"], "01 04:00:00")
    assert _due(hourly, begin, now, "none") == ([], "01 04:00:00")
    assert _due(hourly, begin, now, "all")[0] == ["01 00:00:00", "01 01:00:00", "01 02:00:00", "01 03:00:00"]
    assert _due(hourly, begin, "2026-01-01T00:00:10", "none")[0] == ["01 00:00:00"], "within the grace"


def test_while_another_beat_takes_over_no_slot_is_missed_whatever_the_policy() -> None:
    for policy in ("last", "none"):
        slots, following = _due("every 1.0", "2026-01-01T00:00:00", "2026-01-01T00:00:05.5", policy)
        assert slots == [f"01 00:00:0{n}" for n in range(6)]
        assert following == "01 00:00:06"


def test_catching_up_is_bounded_and_quick_after_a_year() -> None:
    for spec, count in (("every 1.0", MOST_SLOTS), ("* * * * *", MOST_SLOTS), ("0 0 * * *", 366)):
        slots, _ = due_slots(parse_timetable(spec, "UTC"), _utc("2025-01-01"), _utc("2026-01-01T12:00"), "all", GRACE_S)
        assert len(slots) == count
        assert slots[-1] <= _utc("2026-01-01T12:00") and slots == sorted(slots)
    yearly, _ = due_slots(parse_timetable("0 0 1 2 *", "UTC"), _utc("2025-02-01"), _utc("2026-01-01"), "last", GRACE_S)
    assert yearly == [_utc("2025-02-01")]


def test_the_uid_of_a_slot_is_its_own_and_a_uuid() -> None:
    slot = _utc("2026-01-01")
    assert slot_uid("a", slot) == slot_uid("a", slot)
    assert len({slot_uid("a", slot), slot_uid("b", slot), slot_uid("a", slot + timedelta(seconds=1))}) == 3
    assert slot_uid("a", slot)[6] >> 4 == 7


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"cron": "* * *"}, "periodic"), ({"cron": "0 0 31 2 *"}, "periodic"), ({"every": 0.1}, "periodic"),
        ({"cron": "* * * * *", "timezone": "Mars/Base"}, "periodic"), ({}, "periodic"),
        ({"cron": "* * * * *", "every": 5}, "periodic"), ({"every": 5, "catch_up": "some"}, "catch_up"),
        ({"every": 5, "color": 1}, "color"),
    ],
)  # fmt: skip
def test_a_wrong_declaration_is_named(given: dict[str, Any], name: str) -> None:
    app = Ems("test")
    task = app.task(name="t")(print)
    with pytest.raises(ConfigError) as caught:
        app.periodic(**given)(task)
    assert [problem.name for problem in caught.value.problems] == [name]


def test_a_name_is_one_schedule() -> None:
    app = Ems("test")
    task = app.periodic(every=5)(app.task(name="t")(print))
    with pytest.raises(ConfigError, match="taken"):
        app.periodic(every=6)(task)
    app.periodic(every=6, name="other")(task)
    assert sorted(app.registry.schedules) == ["other", "t"]
