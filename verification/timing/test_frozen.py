"""Handlers that hold the interpreter's lock, so that nothing else in their process runs: no lease, no time limit."""

import signal
import time
from collections import Counter

import pytest

from tests.process.stream import Stream
from tests.support.waiting import never, until
from tests.support.worker import children_of, kill

pytestmark = pytest.mark.few

APP = "tests.process.apps.frozen:app"
_HELD_S = 8.0  # four leases, and less than the supervisor's patience of ten seconds
_PATIENCE_S = 10.0


def test_another_worker_takes_over_by_lease_and_the_frozen_one_can_finish_nothing(stream: Stream) -> None:
    workers = [stream.worker(APP, threads=1) for _ in range(2)]
    old = {client: worker for worker in workers for client in worker.client_ids()}
    stream.send("holds", [{"n": 0, "s": _HELD_S}, *({"n": n} for n in range(1, 40))])
    first = until(lambda: stream.record.events("start", n=0), 20, "it is run")[0]
    (frozen,) = [worker for worker in workers if first["pid"] in worker.children()]
    stream.wait_ended(range(1, 40), 30)
    ends = until(lambda: len(found := stream.record.events("end", n=0)) == 2 and found, 30, "both runs have ended")
    (again,) = stream.record.events("start", n=0)[1:]
    assert again["pid"] != first["pid"] and again["at"] < first["at"] + _HELD_S, "while the first was frozen"
    assert {end["pid"] for end in ends} == {first["pid"], again["pid"]}
    stream.wait_settled()
    until(lambda: frozen.client_ids(), 20, f"it has registered anew: {stream.logs()}")
    assert not set(frozen.client_ids()) & set(old) and frozen.children() == [first["pid"]], "the same process goes on"
    done = stream.rows("SELECT client_id FROM ems_claim WHERE state = 'done' AND lo <= 1 AND hi >= 1")
    assert [old.get(client) for (client,) in done] != [frozen], "what it finished was refused"
    starts = Counter(stream.record.numbers("start"))
    assert starts == {0: 2, **dict.fromkeys(range(1, 40), 1)}
    assert stream.rows("SELECT * FROM ems_attempt") == [], "nobody is charged for that"
    assert [worker.stop() for worker in workers] == [0, 0]


def test_a_child_that_stays_frozen_is_replaced(one_stream: Stream) -> None:
    stream = one_stream
    worker = stream.worker(APP, threads=2)
    (child,) = worker.children()
    stream.send("matches", [{"n": 0, "hard": True}, *({"n": n} for n in range(1, 10))])
    stream.wait_ended(range(10), 60)
    assert f"(process {child}) has been frozen for 10 s" in worker.text()
    assert worker.children() != [child]
    assert worker.stop() == 0


def test_a_message_that_freezes_every_process_is_dead_in_the_end(one_stream: Stream) -> None:
    stream = one_stream
    worker = stream.worker(APP, settings={"max_attempts": 1, "ladder": "100ms"})
    stream.send("matches", [{"n": 0, "always": True}, *({"n": n} for n in range(1, 10))])
    stream.wait_ended(range(1, 10), 120)
    until(lambda: stream.rows("SELECT * FROM ems_dead"), 120, f"it is dead: {stream.logs()}")
    stream.wait_settled()
    assert stream.rows("SELECT `offset`, attempts FROM ems_dead") == [(1, 1)]
    assert {row[0] for row in stream.rows("SELECT `offset` FROM ems_attempt")} == {1}, "no neighbour is charged"
    assert worker.stop() == 0


@pytest.mark.parametrize("whole", [True, False], ids=["the whole worker", "a child"])
def test_one_that_was_only_paused_is_not_killed(one_stream: Stream, whole: bool) -> None:
    """As by a debugger, or a machine that sleeps."""
    worker = one_stream.worker(APP, processes=2)
    children = children_of(worker.pid)
    paused = [*children, worker.pid] if whole else children[:1]
    for pid in paused:
        kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    until(lambda: time.monotonic() - began > _PATIENCE_S + 2, 20, "longer than the supervisor's patience")
    for pid in reversed(paused):
        kill(pid, signal.SIGCONT)
    never(lambda: children_of(worker.pid) != children, 2, "a child is killed")
    until(lambda: len(worker.client_ids()) == 2, 20, "they have registered anew")
    assert "killing" not in worker.text()
    assert worker.stop() == 0
