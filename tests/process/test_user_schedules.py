"""Schedules that are added while workers and beats run."""

import signal
from datetime import UTC, datetime, timedelta

import pytest

from emsworker.admin import Admin
from emsworker.core.model import HandlerRow
from tests.process.stream import Stream
from tests.process.test_beat import _holder_pid
from tests.process.test_periodic import APP
from tests.support.waiting import never, until
from tests.support.worker import kill


@pytest.mark.chaos
def test_each_slot_is_fired_once_while_beats_are_killed_and_none_after_the_deletion(stream: Stream) -> None:
    worker = stream.worker(APP, beat=False)
    kept = Admin(stream.app).schedules
    for n in range(6):
        kept.add(f"customer-{n}", "tick", every=1.0, catch_up="all", args=[n], key="mine", tag="mine")
    beats = {beat.pid: beat for beat in [stream.beat() for _ in range(2)]}
    until(lambda: _slots(stream, 0), 20, "the first slot")
    leader = until(lambda: next((pid for pid in beats if pid == _holder_pid(stream)), 0), 10, "one leads")
    kill(leader, signal.SIGKILL)
    beats.pop(leader).wait()
    seen = len(_slots(stream, 0))
    kept.change("customer-1", args=[101])
    until(lambda: len(_slots(stream, 0)) >= seen + 2 and _slots(stream, 101), 30, "another one goes on")
    for n in range(6):
        (kept.delete if n % 2 else kept.pause)(f"customer-{n}")
    ended = datetime.now(UTC)
    last = {row.name: row.last_at for row in kept.list()}
    until(lambda: all(_slots(stream, n)[-1:] == [last[f"customer-{n}"]] for n in range(0, 6, 2)), 20, "all have run")
    late = "one is fired after its deletion or its pause"
    never(lambda: [slot for n in (*range(6), 101) for slot in _slots(stream, n) if slot > ended], 1.5, late)
    for n in (0, 2, 4):
        slots = _slots(stream, n)
        assert slots == [slots[0] + timedelta(seconds=one) for one in range(len(slots))], "none is missing, none twice"
    both = sorted(_slots(stream, 1) + _slots(stream, 101))
    assert both == [both[0] + timedelta(seconds=one) for one in range(len(both))], "nor at the change"
    assert worker.stop() == 0


def _slots(stream: Stream, n: int) -> list[datetime]:
    events = stream.record.events("tick")
    return sorted(datetime.fromisoformat(one["slot"]) for one in events if one["n"] == n and one["key"] == "mine")


def test_a_worker_whose_schedule_has_the_name_of_a_users_is_refused(one_stream: Stream) -> None:
    admin = Admin(one_stream.app)
    admin.create_topic("default")
    group = admin.create_group("default", "workers")
    one_stream.app.stream.declare_handlers(group, [HandlerRow("clean", "retry", None, None)])
    kept = admin.schedules
    kept.add("nightly", "clean", every=60.0)
    before = kept.list()
    program = one_stream.start("worker", {}, app=APP)
    assert program.wait() == 2, program.text()
    told = [line for line in program.text().splitlines() if "Error: " in line]
    assert len(told) == 1 and "'nightly'" in told[0] and "`ems schedules delete`" in told[0]
    assert kept.list() == before
