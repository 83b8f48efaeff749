"""Periodic tasks on real beats."""

import os
import random
import signal
import time
from datetime import datetime, timedelta

import pytest

from emsworker.beat.schedules import fire_schedules
from emsworker.core.config import Settings
from emsworker.core.process.clock import ticks
from emsworker.store.cluster import schedules
from tests.process.apps import periodic as app_module
from tests.process.stream import Stream
from tests.process.test_beat import _holder_pid
from tests.support.waiting import until
from tests.support.worker import kill

APP = "tests.process.apps.periodic:app"
_LONG = os.environ.get("EMS_TEST_LONG") == "1"


@pytest.mark.chaos
def test_each_slot_is_fired_exactly_once_though_the_leader_is_killed(stream: Stream) -> None:
    chance = random.Random(11)
    worker = stream.worker(APP, beat=False)
    beats = {beat.pid: beat for beat in [stream.beat() for _ in range(3)]}
    first = until(lambda: stream.record.events("tick"), 15, "the first slot")[0]
    for _ in range(20 if _LONG else 2):
        pause = time.monotonic() + chance.uniform(0.1, 1.2)
        until(lambda pause=pause: time.monotonic() > pause, 3, "a random moment")
        leader = until(lambda: next((pid for pid in beats if pid == _holder_pid(stream)), 0), 10, "one leads")
        kill(leader, signal.SIGKILL)
        beats.pop(leader).wait()
        new = stream.beat()
        beats[new.pid] = new
    seen = len(stream.record.events("tick"))
    until(lambda: len(stream.record.events("tick")) >= seen + 2, 15, f"it goes on; log:\n{stream.logs()}")
    for beat in beats.values():
        beat.kill_all()  # the last may not have installed its signal handlers yet
    last = stream.one("SELECT last_at FROM ems_schedule WHERE name = 'tick'")
    until(lambda: _slots(stream)[-1].replace(tzinfo=None) == last, 10, "the last slot has run")
    slots = _slots(stream)
    assert slots == [slots[0] + timedelta(seconds=n) for n in range(len(slots))], "no slot is missing, none came twice"
    assert first["n"] == 7 and first["key"] == "k"
    assert stream.record.events("clean") == []
    assert worker.stop() == 0


def _slots(stream: Stream) -> list[datetime]:
    return sorted(datetime.fromisoformat(event["slot"]) for event in stream.record.events("tick"))


def test_many_beats_at_the_same_moment_fire_a_slot_once(stream: Stream) -> None:
    """Without any lease between them: the row's lock and the uid decide."""
    from tests.support.streams import in_threads

    topic = stream.app.stream.catalog.topic("t")
    one = schedules.Declared("s", "every 1.0", "UTC", "all", topic.name, None, b"{}", b"[[],{}]")
    stream.app.stream.database.call(lambda session: schedules.declare(session, [one]))
    begin = stream.one("SELECT next_at FROM ems_schedule")
    settings = Settings(url=stream.url)
    end = ticks() + 2.5

    def beat(number: int) -> None:
        with stream.app.stream.database.session() as session:
            while ticks() < end:
                fire_schedules(session, settings)

    in_threads(4, beat)
    # Whoever declares it anew with an earlier slot repeats nothing either.
    due = [row[0] for row in stream.rows("SELECT due_at FROM ems_outbox ORDER BY due_at")]
    assert len(due) >= 2 and due == [begin + timedelta(seconds=n) for n in range(len(due))]
    stream.run("UPDATE ems_schedule SET next_at = %s", begin)
    with stream.app.stream.database.session() as session:
        fire_schedules(session, settings)
        assert len(due) <= stream.one("SELECT COUNT(*) FROM ems_outbox") <= len(due) + 3


def test_a_restart_keeps_the_next_slot_and_a_new_timetable_begins_anew(stream: Stream) -> None:
    topic = stream.app.stream.catalog.topic("t")

    def declare(spec: str) -> object:
        one = schedules.Declared("s", spec, "UTC", "last", topic.name, None, b"{}", b"[[],{}]")
        stream.app.stream.database.call(lambda session: schedules.declare(session, [one]))
        return stream.one("SELECT next_at FROM ems_schedule")

    declare("0 0 1 1 *")
    stream.run("UPDATE ems_schedule SET next_at = '2020-01-01', last_at = '2019-01-01'")
    assert declare("0 0 1 1 *") == datetime(2020, 1, 1)
    assert declare("0 0 2 1 *") > datetime(2026, 1, 1)
    assert stream.one("SELECT last_at FROM ems_schedule") == datetime(2019, 1, 1)


def test_a_damaged_schedule_does_not_stop_the_others(one_stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    stream = one_stream
    for name in ("bad", "good"):
        topic = stream.app.stream.catalog.topic("t")
        one = schedules.Declared(name, "every 1.0", "UTC", "last", topic.name, None, b"{}", b"[[],{}]")
        stream.app.stream.database.call(lambda session, one=one: schedules.declare(session, [one]))
    stream.run("UPDATE ems_schedule SET next_at = '2020-01-01'")
    stream.run("UPDATE ems_schedule SET spec = 'whenever' WHERE name = 'bad'")
    with stream.app.stream.database.session() as session:
        fire_schedules(session, Settings(url=stream.url))
    assert stream.one("SELECT COUNT(*) FROM ems_outbox") >= 1
    assert "schedule 'bad' is disabled" in caplog.text
    assert sorted(app_module.app.registry.schedules) == ["nightly", "tick"]


def test_schedules_are_listed_and_deleted(one_stream: Stream) -> None:
    from emsworker.admin import Admin
    from emsworker.core.errors import UnknownSchedule

    worker = one_stream.worker(APP)
    admin = Admin(one_stream.app)
    nightly, tick = admin.schedules.list()
    assert (nightly.name, nightly.spec, nightly.timezone, nightly.last_at) == (
        "nightly",
        "0 3 * * *",
        "Europe/Berlin",
        None,
    )
    assert (tick.name, tick.topic) == ("tick", "default")
    until(lambda: admin.schedules.list()[1].last_at, 10, "it was fired")
    assert worker.stop() == 0
    admin.schedules.delete("tick")
    with pytest.raises(UnknownSchedule, match="tick"):
        admin.schedules.delete("tick")
