"""The turns in which the processes of a worker take suspect messages."""

import pytest

from emsworker.consume import isolation as module
from emsworker.consume.isolation import SHARED_BYTES, SPARE_S, TURN_S, Suspects
from emsworker.core.model import Claim, ClaimSource, Isolation


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a test may change."""
    now = [1000.0]
    monkeypatch.setattr(module, "ticks", lambda: now[0])
    return now


def claim(group_id: int = 1, isolation: Isolation = Isolation.ALONE) -> Claim:
    return Claim(group_id, 0, 5, 9, 4, 7, ClaimSource.STREAM, isolation, "c")


def test_one_process_of_a_worker_runs_a_suspect_alone_until_it_ends_or_its_turn_does(now: list[float]) -> None:
    shared = bytearray(SHARED_BYTES)
    one, other = Suspects(shared), Suspects(shared)
    assert one.most_isolation(1) is Isolation.LAST
    with one.turn(claim()):
        assert other.most_isolation(1) is Isolation.FEW
    assert other.most_isolation(1) is Isolation.LAST
    with other.turn(claim()):
        now[0] += TURN_S / 2
        assert one.most_isolation(1) is Isolation.FEW, "the other one has died, or not"
        now[0] += TURN_S / 2
        assert one.most_isolation(1) is Isolation.LAST
        longer = one.turn(claim())
        longer.__enter__()
    assert other.most_isolation(1) is Isolation.FEW, "it was no longer its turn that has ended"


def test_what_is_not_suspect_takes_no_turn_and_few_suspects_do_not_run_alone(now: list[float]) -> None:
    shared = bytearray(SHARED_BYTES)
    for isolation in (Isolation.NONE, Isolation.FEW):
        with Suspects(shared).turn(claim(isolation=isolation)):
            assert Suspects(shared).most_isolation(1) is Isolation.LAST


def test_a_process_after_a_crash_takes_no_suspects_at_first(now: list[float]) -> None:
    young = Suspects(spare_s=SPARE_S)
    assert young.most_isolation(1) is Isolation.NONE
    now[0] += SPARE_S
    assert young.most_isolation(1) is Isolation.LAST


def test_suspects_of_one_group_are_taken_until_none_is_left(now: list[float]) -> None:
    mine = Suspects()
    with mine.turn(claim(1)):
        pass
    assert (mine.most_isolation(1), mine.most_isolation(2)) == (Isolation.LAST, Isolation.NONE)
    mine.none_left(2)
    assert mine.most_isolation(2) is Isolation.NONE
    mine.none_left(1)
    assert mine.most_isolation(2) is Isolation.LAST
    with mine.turn(claim(2, Isolation.FEW)):
        assert mine.most_isolation(1) is Isolation.NONE
        now[0] += TURN_S
        assert mine.most_isolation(1) is Isolation.LAST, "a long one of group 2 keeps nobody waiting"


def test_what_no_process_can_have_written_is_no_turn(now: list[float]) -> None:
    shared = bytearray(SHARED_BYTES)
    Suspects(shared).turn(claim()).__enter__()
    now[0] -= 100  # as if half of the bytes were new
    assert Suspects(shared).most_isolation(1) is Isolation.LAST
