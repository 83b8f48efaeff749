"""The gate of poison isolation: a suspect is alone in its process, or it is known not to be."""

import math
import threading

from emsworker.consume.isolation import IsolationGate, Passage
from emsworker.core.process.clock import ticks
from tests.support.waiting import until


def test_a_suspect_is_alone_once_nobody_else_runs_and_nobody_starts_beside_it() -> None:
    gate, suspect, other = IsolationGate(), object(), object()
    with gate.shared():
        assert gate.ask(suspect, math.inf) is Passage.WAIT
        assert gate.closed, "what runs starts nothing more"
    assert gate.ask(suspect, math.inf) is Passage.ALONE
    assert gate.ask(other, 0.0) is Passage.WAIT, "another suspect waits for its turn"
    gate.leave(suspect)
    assert not gate.closed and gate.ask(other, 0.0) is Passage.ALONE


def test_one_that_waited_for_its_room_runs_beside_others_and_is_company_itself() -> None:
    gate, suspect, next_one = IsolationGate(), object(), object()
    with gate.shared():
        assert gate.ask(suspect, 0.01) is Passage.BESIDE
        assert not gate.closed
    assert gate.ask(next_one, 0.01) is Passage.BESIDE, "the first one still runs"
    gate.leave(next_one)
    gate.leave(suspect)
    assert gate.ask(next_one, 0.01) is Passage.ALONE


def test_it_keeps_the_process_beyond_its_room_only_while_nobody_waits() -> None:
    gate, suspect = IsolationGate(), object()
    assert gate.ask(suspect, 0.0) is Passage.ALONE
    assert not gate.overstays(suspect, ticks() + 9), "nobody waits"
    waiter = threading.Thread(target=gate.wait_open, args=(30,))
    waiter.start()
    until(lambda: gate.overstays(suspect, ticks()), 5, "somebody waits")
    gate.open(suspect)
    waiter.join(5)
    assert not waiter.is_alive() and gate.ask(object(), 0.0) is Passage.BESIDE, "the suspect still runs"
