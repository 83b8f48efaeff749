"""SIGTERM, a second SIGTERM, SIGQUIT; the end of a supervisor."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.process.stream import ACTOR, Stream
from tests.support.machine import machine_s
from tests.support.waiting import until
from tests.support.worker import children_of, kill

pytestmark = pytest.mark.few


def test_sigterm_finishes_what_runs_and_gives_the_rest_back_at_once(stream: Stream) -> None:
    worker = stream.worker(topics=["acts"], groups=["a"], processes=2, threads=2)
    stream.send("acts", [{"n": n} for n in range(3000)])  # so that claims are large
    stream.wait_ended(range(3000))
    stream.send("acts", [{"n": n, "do": "sleep", "s": 0.4} for n in range(3000, 3040)])
    until(lambda: len([n for n in stream.record.numbers("start") if n >= 3000]) >= 2, 10, "slow ones run")
    began = machine_s()
    assert worker.stop() == 0
    assert machine_s() - began < 2, "only what ran was finished"
    assert stream.rows("SELECT * FROM ems_client") == []
    assert stream.record.numbers("start") == stream.record.numbers("end")
    assert stream.rows("SELECT * FROM ems_claim WHERE state = 'start'") == []
    assert stream.rows("SELECT * FROM ems_claim WHERE isolation > 0") == []
    stream.worker(topics=["acts"], groups=["a"], processes=4, threads=4, beat=False)  # nothing to recover
    stream.wait_ended(range(3040), 10)
    stream.wait_settled()
    assert stream.record.numbers("start") == list(range(3040)), "nothing twice"
    assert stream.rows("SELECT * FROM ems_attempt") == []
    assert len(stream.record.events("process_stop")) == 2


def test_hangups_under_load_lose_nothing_and_repeat_nothing(stream: Stream) -> None:
    """What a terminal sends to all its processes, and logrotate to one: children are replaced, the beat goes on."""
    worker = stream.worker(topics=["acts"], groups=["a"], processes=2, threads=2)
    beat = stream.beat()
    until(lambda: "the beat is running" in beat.text(), 60, "it handles signals")
    count = 0
    for _ in range(3):
        replaced = set(worker.children())
        for _ in range(5):
            stream.send("acts", [{"n": n, "do": "sleep", "s": 0.002} for n in range(count, count + 200)])
            count += 200
        for pid in (worker.pid, beat.pid, *replaced):
            kill(pid, signal.SIGHUP)
        until(
            lambda replaced=replaced: len(found := set(worker.children())) == 2 and not found & replaced,
            40,
            f"the children are replaced; log:\n{stream.logs()}",
        )
    stream.wait_ended(range(count), 60)
    stream.wait_settled()
    assert stream.record.numbers("start") == list(range(count)), "nothing twice"
    assert stream.rows("SELECT * FROM ems_attempt") == [] == stream.rows("SELECT * FROM ems_dead")
    assert beat.process.poll() is None and " ended with" not in worker.text()
    assert beat.stop() == 0 and worker.stop() == 0


@pytest.mark.parametrize("numbers", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGQUIT,)], ids=["twice", "quit"])
def test_a_hard_stop_is_at_once_and_loses_nothing(one_stream: Stream, numbers: tuple[signal.Signals, ...]) -> None:
    stream = one_stream
    worker = stream.worker(topics=["acts"], groups=["a"], processes=2, threads=2)
    stream.send("acts", [{"n": n, "do": "sleep", "s": 30, "until": 1} for n in range(4)])
    until(lambda: len(stream.record.numbers("start")) == 4, 10, "all four run")
    stream.send("acts", [{"n": n} for n in range(4, 50)])
    began = machine_s()
    for number in numbers:
        worker.send(number)
        until(lambda: "stopping" in worker.text(), 5, "the signal arrived")
    assert worker.wait() == 0
    assert machine_s() - began < 4
    assert stream.rows("SELECT * FROM ems_client") == []
    assert stream.rows("SELECT * FROM ems_claim WHERE state = 'start'") == [], "given back by itself, without a beat"
    assert stream.rows("SELECT * FROM ems_attempt") == [], "nobody is charged"
    assert len(stream.record.numbers("start")) == 4, "nothing new was begun"
    stream.run("DELETE FROM ems_client")
    # Run again: attempt 1 still, so it would sleep again; the group's second worker only has to take it at once.
    stream.worker(topics=["acts"], groups=["a"], processes=4, threads=4, beat=False)
    stream.wait_ended(range(4, 50), 5)
    until(lambda: stream.record.numbers("start").count(3) == 2, 5, "taken over at once")


@pytest.mark.parametrize("wait_s", [0.0, 0.3, 0.6])
def test_a_stop_signal_during_the_start_is_not_lost(one_stream: Stream, wait_s: float) -> None:
    program = one_stream.start("worker", app="tests.process.apps.actor:app", topics=["acts"], processes=2)
    until(lambda: "started child 1" in program.text(), 20, "children started")
    began = time.monotonic()
    until(lambda: time.monotonic() - began >= wait_s, 5, "some moment of the start")
    assert program.stop() == 0
    assert one_stream.rows("SELECT * FROM ems_client") == []


@pytest.mark.slow
@pytest.mark.parametrize(("what", "until_s"), [("worker", 3.0), ("beat", 1.6)])
def test_a_stop_at_any_moment_of_the_start_ends_in_order(one_stream: Stream, what: str, until_s: float) -> None:
    """From the moment when the command's own code runs; before that the interpreter starts, for some 30 ms."""
    for number, at_s in enumerate(_moments(until_s)):
        program = one_stream.start(what, app=ACTOR, processes=2, environ={"PYTHONPROFILEIMPORTTIME": "1"})
        until(lambda program=program: "| click" in program.text() or "click." in program.text(), 30, "its code runs")
        began = time.monotonic()
        until(lambda began=began, at_s=at_s: time.monotonic() - began >= at_s, 10, "a moment", poll_s=0.005)
        children = children_of(program.pid)
        program.send((signal.SIGTERM, signal.SIGINT)[number % 2])
        said = f"after {at_s:.2f} s: {_without_imports(program.text())}"
        assert program.wait() == 0, said
        assert "Traceback" not in program.text(), said
        for pid in children:
            until(lambda pid=pid: _gone(pid), 10, f"{pid} is gone, {said}")
        assert one_stream.rows("SELECT client_id FROM ems_client UNION SELECT service FROM ems_leader") == [], said


def _moments(until_s: float) -> list[float]:
    """Every so often, and each time at another moment."""
    step_s = float(os.environ.get("EMS_TEST_STOP_STEP_S", "0.2"))
    return [number * step_s for number in range(int(until_s / step_s) + 1)]


def _without_imports(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("import time:"))


def test_a_child_told_to_stop_before_it_can_listen_ends_in_order(one_stream: Stream) -> None:
    """As when the supervisor, or an operator, tells a child that has only just been started."""
    program = one_stream.start("worker", app=ACTOR, processes=1)
    told: set[int] = set()

    def tell() -> bool:
        for pid in set(children_of(program.pid)) - told:
            if "worker.child" in _command_line(pid):
                kill(pid, signal.SIGTERM)
                told.add(pid)
        return len(told) == 3

    until(tell, 60, f"three children were told: {program.text()}", poll_s=0.001)
    assert "signal SIGTERM" not in program.text()
    assert program.stop() == 0


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_children_end_when_their_supervisor_is_killed(one_stream: Stream) -> None:
    stream = one_stream
    worker = stream.worker(topics=["acts"], groups=["a"], processes=2, threads=2)
    children = children_of(worker.pid)
    assert len(children) == 2
    stream.send("acts", [{"n": 0, "do": "sleep", "s": 1}])
    until(lambda: stream.record.events("start"), 10, "it runs")
    kill(worker.pid, signal.SIGKILL)
    worker.process.wait()
    until(lambda: not stream.rows("SELECT * FROM ems_client"), 10, "they deregistered")
    assert stream.record.numbers() == [0], "what ran was finished"
    assert stream.open_claims() == []
    for pid in children:
        until(lambda pid=pid: _gone(pid), 10, f"{pid} is gone")


def _gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123 - a moment in the life of a process
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
