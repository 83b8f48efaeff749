"""A side thread that dies ends its process in a clear line, and the supervisor starts another: no zombie goes on."""

import pytest

from emsworker.local import Redis
from tests.process.stream import Stream
from tests.support.waiting import never, until

pytestmark = pytest.mark.few

APP = "tests.process.apps.mortal:app"
THREADS = {"Listener": "ems-wakeups", "Poller": "ems-poller", "LeaseRenewer": "ems-lease"}


@pytest.mark.parametrize("kind", THREADS)
def test_a_side_thread_that_dies_ends_its_process(one_stream: Stream, redis_url: str, kind: str) -> None:
    stream = one_stream
    worker = stream.start(
        "worker", {"redis_url": redis_url}, app=APP, topics=["plain"], environ={"EMS_TEST_DIES": kind}
    )
    line = f"thread {THREADS[kind]} died: LookupError('nobody has foreseen this')"
    until(lambda: "ended with exit code 1; the next starts" in worker.text(), 60, f"replaced: {worker.text()}")
    assert worker.text().count(line) == 1, worker.text()
    assert worker.process.poll() is None, "the worker itself goes on"
    stream.send("plain", [{"n": 1}])
    stream.wait_ended([1], 30)
    worker.wait_ready()
    assert worker.stop() == 0
    assert stream.rows("SELECT * FROM ems_client") == []


def test_an_event_loop_that_a_handler_stops_ends_the_process(one_stream: Stream) -> None:
    """Every thread with a coroutine on it would wait for ever."""
    worker = one_stream.worker(APP, topics=["loop"], settings={"ladder": "100ms"})
    (child,) = worker.children()
    one_stream.send("loop", [{"n": 1, "stop": 1}, {"n": 2}])
    one_stream.wait_ended([1, 2], 30)
    assert "thread ems-coroutines died" in worker.text() and "a handler has stopped the event loop" in worker.text()
    assert worker.children() != [child]
    assert worker.stop() == 0


def test_the_event_loop_of_broadcasts_as_well(one_stream: Stream) -> None:
    worker = one_stream.worker(APP, topics=["news", "plain"])
    one_stream.send("news", [{"n": 1, "stop": 1}])
    until(lambda: "thread ems-coroutines died" in worker.text(), 30, "it has died")
    until(lambda: "the next starts" in worker.text(), 30, "and its process with it")
    worker.wait_ready()
    one_stream.send("news", [{"n": 2}])
    until(lambda: one_stream.record.numbers("heard") == [2], 30, f"the next hears: {worker.text()}")
    assert worker.stop() == 0


def test_redis_being_away_is_no_death(one_stream: Stream, redis_url: str, redis_server: Redis) -> None:
    worker = one_stream.worker(APP, topics=["plain"], settings={"redis_url": redis_url})
    children = worker.children()
    redis_server.stop()
    try:
        one_stream.send("plain", [{"n": 1}])
        one_stream.wait_ended([1], 20)
        until(lambda: "Redis is unavailable; this process polls" in worker.text(), 20, "it is told")
        never(lambda: worker.text().count("Redis is unavailable") > 1, 3, "it is told again and again")
    finally:
        redis_server.start()
    until(lambda: "redis is there again" in worker.text(), 20, "it has reconnected")
    one_stream.send("plain", [{"n": 2}])
    one_stream.wait_ended([2], 20)
    assert worker.children() == children
    assert worker.stop() == 0
