"""The turns in which the processes of a worker take suspect messages."""

import pytest

from emsworker.consume import suspects
from emsworker.consume.suspects import SHARED_BYTES, SPARE_S, TURN_S, Suspects
from emsworker.core.model import Isolation


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a test may change."""
    now = [1000.0]
    monkeypatch.setattr(suspects, "ticks", lambda: now[0])
    return now


def test_one_process_of_a_worker_runs_a_suspect_alone_until_it_ends_or_its_turn_does(now: list[float]) -> None:
    shared = bytearray(SHARED_BYTES)
    one, other = Suspects(shared), Suspects(shared)
    turn = one.begin(1)
    assert turn.most_isolation is Isolation.LAST
    assert other.begin(1).most_isolation is Isolation.FEW
    one.end(turn)
    dies = other.begin(1)
    assert dies.most_isolation is Isolation.LAST
    now[0] += TURN_S / 2
    assert one.begin(1).most_isolation is Isolation.FEW, "the other one has died, or not"
    now[0] += TURN_S / 2
    turn = one.begin(1)
    assert turn.most_isolation is Isolation.LAST
    other.end(dies)
    assert other.begin(1).most_isolation is Isolation.FEW, "it was no longer its turn"
    one.end(turn)


def test_a_process_after_a_crash_takes_no_suspects_at_first(now: list[float]) -> None:
    young = Suspects(spare_s=SPARE_S)
    assert young.begin(1).most_isolation is Isolation.NONE
    now[0] += SPARE_S
    assert young.begin(1).most_isolation is Isolation.LAST


def test_suspects_of_one_group_are_taken_until_none_is_left(now: list[float]) -> None:
    mine = Suspects()
    mine.end(mine.begin(1))
    assert mine.begin(2).most_isolation is Isolation.NONE
    mine.end(mine.begin(2), found=False)
    assert mine.begin(2).most_isolation is Isolation.NONE, "group 2 was not asked for any"
    mine.end(mine.begin(1), found=False)
    mine.end(mine.begin(2))
    assert mine.begin(1).most_isolation is Isolation.NONE
    now[0] += TURN_S
    assert mine.begin(1).most_isolation is Isolation.LAST, "a long one of group 2 keeps nobody waiting"


def test_what_no_process_can_have_written_is_no_turn(now: list[float]) -> None:
    shared = bytearray(SHARED_BYTES)
    Suspects(shared).begin(1)
    now[0] -= 100  # as if half of the bytes were new
    assert Suspects(shared).begin(1).most_isolation is Isolation.LAST
