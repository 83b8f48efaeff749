"""Crashes and hangs are recovered quickly, and a poison message hurts only itself."""

import signal
from collections import Counter

import pytest

from tests.process.stream import Stream
from tests.support.machine import machine_s
from tests.support.waiting import until
from tests.support.worker import kill

pytestmark = pytest.mark.few

QUICKLY_S = 2.5  # two looks of the beat and the start of another process, well below lease and timeout


def test_a_killed_child_is_replaced_and_its_work_run_again_quickly(stream: Stream) -> None:
    worker = stream.worker(topics=["acts"], groups=["a"], settings={"lease_s": 30, "renew_s": 5})
    stream.send("acts", [{"n": n, "do": "sleep", "s": 0.3} for n in range(4)])
    until(lambda: stream.record.events("start"), 10, "it runs")
    (child,) = worker.children()
    kill(child, signal.SIGKILL)
    killed = machine_s()
    stream.wait_ended(range(4), 10)
    again = next(one["at"] for one in stream.record.events("start") if one["pid"] != child)
    assert machine_s(again) - killed < QUICKLY_S
    stream.wait_settled()
    assert all(count <= 2 for count in Counter(stream.record.numbers("start")).values())
    assert stream.rows("SELECT * FROM ems_attempt") == [], "nobody is charged for the first crash"
    assert worker.stop() == 0


def test_a_message_is_not_done_before_the_hooks_after_its_run_were_called(one_stream: Stream) -> None:
    worker = one_stream.worker(topics=["acts"], groups=["a"])
    one_stream.send("acts", [{"n": 0}], tag="hold")
    until(lambda: one_stream.record.events("held"), 10, "its hook is called")
    (child,) = worker.children()
    kill(child, signal.SIGKILL)
    until(lambda: len(one_stream.record.events("held")) == 2, 10, "nothing was written down, so it is run again")
    worker.kill_all()


def test_the_work_of_a_whole_killed_worker_is_run_elsewhere_within_its_lease(stream: Stream) -> None:
    first = stream.worker(topics=["acts"], groups=["a"], threads=2)
    stream.send("acts", [{"n": 0, "do": "sleep", "s": 60}, {"n": 1, "do": "sleep", "s": 60}])
    until(lambda: len(stream.record.events("start")) == 2, 10, "both run")
    second = stream.worker(topics=["acts"], groups=["a"], threads=2)
    first.kill_all()
    killed = machine_s()
    until(lambda: len(stream.record.events("start")) == 4, 12, "run elsewhere")
    assert machine_s() - killed < 2 + 3, "the lease of 2 s and the beat's lease"
    second.send(signal.SIGQUIT)
    assert second.wait() == 0
    assert stream.rows("SELECT * FROM ems_client WHERE name = %s", second.name) == []


def test_a_hung_handler_is_moved_to_retry_and_its_process_replaced(stream: Stream) -> None:
    # The beat takes a claim past its time only if its owner has renewed its lease since: seconds for the process to be first.
    settings = {"timeout_s": 0.8, "renew_s": 5, "lease_s": 15}
    worker = stream.worker(topics=["acts"], groups=["a"], threads=2, settings=settings)
    stream.send("acts", [{"n": n, "do": "hang" if n == 0 else None, "until": 1} for n in range(6)])
    stream.wait_ended(range(6), 15)
    stream.wait_settled()
    outcomes = stream.rows("SELECT attempt, outcome, ran_ms FROM ems_attempt ORDER BY attempt")
    assert [row[:2] for row in outcomes] == [(1, "timeout"), (2, "done")]
    assert 800 <= outcomes[0][2] < 3000
    error = stream.one("SELECT error FROM ems_attempt WHERE outcome = 'timeout'")
    assert error.startswith("Traceback (most recent call last):\n") and "emsworker/consume" not in error, error
    where = '"hang": lambda body: threading.Event().wait()'
    assert where in error and "TimeLimitExceeded: ran for " in error and where in worker.text(), "and the log says it"
    assert stream.record.numbers("start") == [0, 0, 1, 2, 3, 4, 5]
    assert worker.stop() == 0


def test_all_threads_hanging_time_after_time(one_stream: Stream) -> None:
    worker = one_stream.worker(topics=["acts"], groups=["a"], threads=3, settings={"timeout_s": 0.5})
    one_stream.send("acts", [{"n": n, "do": "hang", "until": 2} for n in range(6)])
    one_stream.wait_ended(range(6), 40)
    one_stream.wait_settled()
    assert one_stream.rows("SELECT outcome, COUNT(*) FROM ems_attempt GROUP BY 1 ORDER BY 1") == [
        ("done", 6),
        ("timeout", 12),
    ]
    assert worker.stop() == 0


DEATHS = ["exit", "exit_well", "segfault", "loop", "hog", "odd", "system_exit", "interrupt"]


@pytest.mark.parametrize("deed", DEATHS)
def test_a_poison_message_hurts_only_itself(one_stream: Stream, deed: str) -> None:
    stream = one_stream
    worker = stream.worker(
        topics=["acts"], groups=["a"], settings={"timeout_s": 1, "max_attempts": 2, "ladder": "200ms"}
    )
    poison = {"n": 20, "do": "exit", "code": 0} if deed == "exit_well" else {"n": 20, "do": deed}
    stream.send("acts", [poison if n == 20 else {"n": n} for n in range(40)])
    others = [n for n in range(40) if n != 20]
    stream.wait_ended(others, 30)
    until(lambda: stream.rows("SELECT * FROM ems_dead"), 30, f"the poison is dead; log:\n{stream.logs()}")
    stream.wait_settled()
    assert stream.rows("SELECT `offset`, attempts FROM ems_dead") == [(21, 2)]
    assert set(stream.rows("SELECT DISTINCT `offset` FROM ems_attempt")) == {(21,)}, "no neighbour is charged"
    assert 20 not in stream.record.numbers()
    doubled = [n for n, count in Counter(stream.record.numbers()).items() if count > 1]
    assert len(doubled) <= 20, "at most what finished since the last acked offset"
    assert worker.stop() == 0


def test_the_neighbours_in_other_threads_are_not_charged_either(one_stream: Stream) -> None:
    stream = one_stream
    worker = stream.worker(topics=["acts"], groups=["a"], threads=4, settings={"max_attempts": 3, "ladder": "200ms"})
    bodies = [{"n": n, "do": "sleep", "s": 0.15} for n in range(24)]
    bodies[5] = {"n": 5, "do": "exit"}
    stream.send("acts", bodies)
    stream.wait_ended([n for n in range(24) if n != 5], 40)
    until(lambda: stream.rows("SELECT * FROM ems_dead"), 30, f"the poison is dead; log:\n{stream.logs()}")
    stream.wait_settled()
    assert set(stream.rows("SELECT DISTINCT `offset` FROM ems_attempt")) == {(6,)}
    assert worker.stop() == 0


def test_a_crash_looping_child_backs_off_whatever_its_exit_code(one_stream: Stream) -> None:
    worker = one_stream.worker(topics=["acts"], groups=["a"], settings={"max_attempts": 50, "ladder": "10ms"})
    one_stream.send("acts", [{"n": 0, "do": "exit", "code": 75}])
    pauses = until(lambda: _pauses(worker.text(), 4), 40, "four crashes")
    assert pauses[:4] == [0, 1, 2, 2], "other messages wait for a process that works"
    assert worker.stop() == 0


def _pauses(log: str, least: int) -> list[float]:
    found = [float(line.rsplit(" ", 2)[1]) for line in log.splitlines() if "the next starts in" in line]
    return found if len(found) >= least else []


def test_an_unknown_app_exits_with_2_and_one_line(one_stream: Stream) -> None:
    program = one_stream.start("worker", app="no_such_module", processes=3, beat=False)
    assert program.wait() == 2
    errors = [line for line in program.text().splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1 and "no_such_module" in errors[0]
    assert "Traceback" not in program.text()
