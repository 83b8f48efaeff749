"""Coroutines: many at once, under the same leases, limits and acknowledgements."""

import signal

import pytest

from emsworker import Ems
from emsworker.core.errors import ConfigError
from emsworker.tasks.task import Task
from tests.process.apps.coroutines import act
from tests.process.stream import Stream
from tests.support.machine import machine_s
from tests.support.waiting import until
from tests.support.worker import kill

_APP = "tests.process.apps.coroutines:app"


def test_a_thousand_sleeps_of_a_second_take_about_a_second(stream: Stream) -> None:
    worker = stream.worker(_APP, topics=["sleeps"], processes=1, threads=4)
    stream.send("sleeps", [{"n": n, "s": 1} for n in range(1000)])
    stream.wait_ended(range(1000), 30)
    ends = [one["at"] for one in stream.record.events("end")]
    assert len(ends) == 1000
    assert machine_s(ends[-1]) - machine_s(ends[0]) < 2.0, "they ran at once"
    stream.wait_settled()
    assert worker.stop() == 0


def _sender(stream: Stream) -> Task:
    """The task as its caller knows it."""
    stream.app = Ems("caller", url=stream.url)
    return stream.app.task(name="act", topic="acts", group="a")(act.function)


def test_errors_limits_and_results_are_each_messages_own(stream: Stream) -> None:
    sender = _sender(stream)
    wanted = [("", 0), ("fail", 1), ("", 2), ("reject", 3), ("long", 4), ("", 5), ("stubborn", 6)]
    receipts = [sender.delay(n, do) for do, n in wanted]
    worker = stream.worker(_APP, topics=["acts"], processes=1, threads=1)
    stream.wait_ended([0, 2, 5])
    stream.wait_settled()
    assert [stream.app.result(receipts[n]).get(10) for n in (0, 2, 5)] == [0, 4, 10]
    dead = stream.rows("SELECT `offset`, attempts FROM ems_dead ORDER BY 1")
    assert dead == [(2, 2), (4, 1), (5, 2), (7, 2)]
    outcomes = stream.rows("SELECT `offset`, outcome FROM ems_attempt ORDER BY `offset`, attempt")
    assert outcomes == [(2, "failed"), (2, "failed"), (4, "rejected"), *[(5, "timeout")] * 2, *[(7, "timeout")] * 2]
    errors = stream.rows("SELECT error FROM ems_attempt WHERE outcome = 'timeout'")
    assert all("await asyncio.sleep(30)" in error for (error,) in errors), errors
    assert stream.record.numbers("cancelled") == [4, 4]
    assert stream.record.numbers() == [0, 2, 5], "the neighbours ran once"
    assert worker.process.poll() is None, "and nothing needed a new process"


def test_nothing_is_lost_when_the_process_dies_or_stops(stream: Stream) -> None:
    stream.send("sleeps", [{"n": n, "s": 0.3 + n % 3 / 10} for n in range(600)])
    worker = stream.worker(_APP, topics=["sleeps"], processes=2, threads=2, settings={"beat_s": 0.2})
    until(lambda: len(stream.record.numbers()) > 50, 20, "some have ended")
    dead = worker.children()[0]
    kill(dead, signal.SIGKILL)
    until(lambda: len(stream.record.numbers()) > 250, 20, "more have ended")
    assert worker.stop() == 0
    kept = [row for row in stream.open_claims() if row[4] == "start" and f"-{dead}-" not in row[6]]
    assert kept == [], "what had not ended went back; the beat may have been stopped before it found the dead one's"
    stream.worker(_APP, topics=["sleeps"])
    stream.wait_ended(range(600), 30)
    stream.wait_settled()


def test_a_coroutine_that_blocks_the_loop_is_found(stream: Stream) -> None:
    stream.send("blocks", [{"n": n} for n in range(3)])
    worker = stream.worker(_APP, topics=["blocks"], processes=1, threads=1)
    stream.wait_ended([0, 2], 30)
    stream.wait_settled()
    ((offset, error),) = stream.rows("SELECT `offset`, error FROM ems_dead")
    assert offset == 2, "it alone was charged"
    assert "time.sleep(60)" in error and "the event loop is blocked by block (" in error.splitlines()[-1], error
    assert "the event loop is blocked by block (" in worker.text() and "time.sleep(60)" in worker.text()


def test_what_a_coroutine_cannot_be_is_said_at_once() -> None:
    app = Ems("x", url="mysql://u@127.0.0.1:1/x")
    for options in ({"transactional": True}, {"batch": 5}):
        with pytest.raises(ConfigError, match="async def"):

            @app.task(**options)
            async def never() -> None:
                pass

    with pytest.raises(ConfigError, match="concurrency"):
        app.task(name="x", concurrency=0)(lambda: None)
