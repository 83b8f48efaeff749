"""The clock that goes slower while others want the machine."""

import time

import pytest

from tests.support import machine, waiting
from tests.support.machine import MachineClock, machine_s, share


def test_it_goes_by_the_share_of_a_processor() -> None:
    now, part = [10.0], [1.0]
    clock = MachineClock(lambda: now[0], lambda: part[0], lambda: now[0])
    now[0] = 12.0
    assert clock.sample() == 12.0, "a quiet machine"
    part[0] = 0.25
    clock.sample()
    now[0] = 16.0
    assert clock.sample() == 13.0, "a quarter of four seconds"
    assert (clock.at(5.0), clock.at(11.0), clock.at(14.0), clock.at(16.0)) == (5.0, 11.0, 12.5, 13.0)


def test_it_stands_still_while_the_machine_does() -> None:
    now, computed = [10.0], [0.0]
    clock = MachineClock(lambda: now[0], lambda: 1.0, lambda: computed[0])
    now[0] = 10.5
    assert clock.sample() == 10.5, "a pause between two samples is none"
    now[0] = 24.5
    assert clock.sample() == pytest.approx(10.55), "nothing was computed for 14 s"
    now[0], computed[0] = 27.5, 3.0
    assert clock.sample() == pytest.approx(13.55), "a process that holds the interpreter is charged for it"


def test_the_share_is_one_where_nobody_else_wants_to_run() -> None:
    assert 0 < share() <= 1
    real, began = time.monotonic(), machine_s()
    assert 0 <= machine_s() - began <= time.monotonic() - real + 0.001


def test_a_deadline_holds_by_that_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = iter(range(100))
    monkeypatch.setattr(waiting, "machine_s", lambda: float(next(spent)))
    looks = []
    with pytest.raises(AssertionError, match="not within 3 s: it"):
        waiting.until(lambda: looks.append(1), 3, "it", poll_s=0)
    assert len(looks) == 4, "until more than 3 s of the machine are over, however quick or slow they were"
    assert machine._SAMPLE_S < 1
