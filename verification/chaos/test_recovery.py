"""What the harness itself asserts of a recovery would fail if it did not hold."""

import pytest

from emsworker.chaos import Fault, HandlerRun, History
from verification.chaos.arena import LOST_LEASE, ORPHANED
from verification.chaos.recovery import recovery_s, too_much_again, undone

KILLED, OTHER = 11, 22
KILL = Fault("kill", 100.0, 100.1, KILLED)


def run(uid: str, pid: int, began: float, ended: float | None, group: str = "plain") -> HandlerRun:
    return HandlerRun(uid, "acts", 0, int(uid), group, pid, began, ended, "done" if ended else None, thread=pid)


def history(*runs: HandlerRun, fault: Fault = KILL) -> History:
    return History(runs=list(runs), faults=[fault])


def test_recovery_counts_from_the_kill_until_another_was_done() -> None:
    done = history(run("1", KILLED, 99.9, None), run("1", OTHER, 104.0, 104.5))
    assert recovery_s(done) == 4.5
    assert undone(done, [("1", "plain")]) == set()


def test_a_process_with_nothing_in_hand_shows_nothing() -> None:
    assert recovery_s(history(run("1", KILLED, 99.0, 99.5), run("1", OTHER, 104.0, 104.5))) is None


def test_what_nobody_else_has_done_is_told_while_the_tables_hold_it() -> None:
    held = history(run("1", KILLED, 99.9, None), run("2", KILLED, 99.9, None, "cash"))
    assert undone(held, [("1", "plain"), ("2", "cash"), ("3", "cash")]) == {("1", "plain"), ("2", "cash")}
    assert undone(held, [("1", "plain"), ("2", "plain")]) == {("1", "plain")}


@pytest.mark.parametrize(("name", "known"), [("kill", None), (ORPHANED, 0.2), (LOST_LEASE, None)])
def test_only_an_orphan_may_finish_by_itself(name: str, known: float | None) -> None:
    own = history(run("1", KILLED, 99.9, 100.2), fault=Fault(name, 100.0, 100.1, KILLED))
    assert recovery_s(own) == known


def _repeated(count: int, took_s: float) -> History:
    first = [run(str(n), KILLED, 99.0 + n * took_s, 99.0 + (n + 1) * took_s) for n in range(count)]
    return history(*first, *(run(str(n), OTHER, 101.0 + n, 101.1 + n) for n in range(count)))


def test_a_hundred_milliseconds_of_work_or_one_message_may_be_run_again_and_no_more() -> None:
    assert too_much_again(_repeated(3, 0.05)) == []
    assert too_much_again(_repeated(1, 0.9)) == []
    (text,) = too_much_again(_repeated(10, 0.06))
    assert "0.60 s" in text
