"""Every process gets every message of a broadcast topic."""

import os
import signal
import time
from typing import Any

import pytest

from emsworker import Ems
from emsworker.core.model import TopicKind
from emsworker.store.topics import create_topic
from tests.process.stream import Stream
from tests.support.machine import machine_s
from tests.support.waiting import never, until
from tests.support.worker import Program, children_of, kill

APP = "tests.process.apps.broadcast:app"


def _prepare(stream: Stream, partitions: int = 1) -> None:
    for name in ("news", "named"):
        stream.app.stream.database.call(
            lambda session, name=name: create_topic(session, name, kind=TopicKind.BROADCAST, partitions=partitions)
        )


def _seen(stream: Stream, event: str, pid: int) -> list[int]:
    """In the order in which it was heard."""
    return [one["n"] for one in stream.record.events(event, pid=pid)]


def _wait(stream: Stream, event: str, numbers: list[int], **wanted: Any) -> None:
    until(
        lambda: set(numbers) <= {one["n"] for one in stream.record.events(event, **wanted)},
        20,
        f"{event} {numbers}; log:\n{stream.logs()}",
    )


def _send(stream: Stream, topic: str, numbers: range, **more: Any) -> None:
    stream.send(topic, [{"n": n, **more} for n in numbers])


def test_three_processes_hear_all_messages_in_order_without_a_claim(stream: Stream) -> None:
    _prepare(stream, partitions=2)
    _send(stream, "news", range(1000, 1010))
    worker = stream.worker(APP, processes=3)
    pids = worker.children()
    assert len(pids) == 3
    until(lambda: "Ready" in worker.text(), 20, "it is ready")
    for n in range(600):
        stream.app.send("news", {"n": n, "do": "raise" if n == 300 else ""}, partition=n % 2)
    for event, skipped in (("heard", {300}), ("awaited", set[int]())):
        expected = [n for n in range(600) if n not in skipped]
        until(lambda e=event, x=expected: all(sorted(_seen(stream, e, pid)) == x for pid in pids), 20, stream.logs())
        for pid in pids:
            for partition in range(2):
                numbers = [one["n"] for one in stream.record.events(event, pid=pid, partition=partition)]
                assert numbers == sorted(numbers), "in order, and none twice"
    assert worker.text().count("ValueError: told to\n") >= 3 and "is not run again" in worker.text()
    for table in ("ems_claim", "ems_retry", "ems_dead", "ems_attempt", "ems_group", "ems_cursor"):
        assert stream.one(f"SELECT COUNT(*) FROM {table}") == 0
    assert stream.one("SELECT COUNT(*) FROM ems_position WHERE name LIKE 'cache/%%'") == 6
    assert worker.stop() == 0
    assert {one["n"] for one in stream.record.events("heard")} == set(range(600)) - {300}, "from the end on"


def test_a_stable_name_goes_on_after_sigterm_and_after_kill_9(stream: Stream) -> None:
    _prepare(stream)
    _send(stream, "named", range(5))
    worker = stream.worker(APP, name="one", topics=["named"])
    until(lambda: "Ready" in worker.text(), 20, "it is ready")
    _send(stream, "named", range(5, 10))
    _wait(stream, "resumed", list(range(5, 10)))
    assert worker.stop() == 0
    _send(stream, "named", range(10, 15))
    worker = stream.worker(APP, name="one", topics=["named"])
    _wait(stream, "resumed", list(range(10, 15)))
    assert stream.record.numbers("resumed") == list(range(5, 15)), "nothing is missing, and nothing came twice"
    _send(stream, "named", range(15, 75), do="slow")
    _wait(stream, "resumed", [30])
    worker.kill_all()
    _send(stream, "named", range(75, 80))
    last = stream.worker(APP, name="one", topics=["named"])
    _wait(stream, "resumed", list(range(5, 80)))
    pid = last.children()[0]
    again = set(_seen(stream, "resumed", pid)) & {
        one["n"] for one in stream.record.events("resumed") if one["pid"] != pid
    }
    assert len(again) < 60, "about half a second of work comes twice"
    assert last.stop() == 0
    assert stream.one("SELECT COUNT(*) FROM ems_position WHERE reader IS NOT NULL") == 0


def _start_named(stream: Stream) -> Program:
    worker = stream.worker(APP, name="one", topics=["named"])
    until(lambda: "Ready" in worker.text(), 20, "it is ready")
    return worker


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("EMS_TEST_LONG") != "1", reason="crashes are spread by the supervisor's backoff")
def test_a_message_that_kills_its_process_is_passed_over_at_last(stream: Stream) -> None:
    _prepare(stream)
    worker = _start_named(stream)
    stream.send("named", [{"n": 0}, {"n": 1}, {"n": 2, "do": "exit"}, {"n": 3}])
    _wait(stream, "resumed", [0, 1, 3])
    assert 3 <= len(stream.record.events("exit", n=2)) <= 5
    assert stream.record.numbers("resumed").count(3) == 1
    assert "passes over offset 3 of partition 0 of topic named" in worker.text()
    assert worker.stop() == 0


def test_a_handler_that_hangs_has_its_process_replaced_and_is_not_run_again(one_stream: Stream) -> None:
    _prepare(one_stream)
    worker = _start_named(one_stream)
    (first,) = children_of(worker.pid)
    one_stream.send("named", [{"n": 0}, {"n": 1, "do": "hang"}, {"n": 2}])
    _wait(one_stream, "resumed", [0, 2])
    assert first not in children_of(worker.pid)
    assert len(one_stream.record.events("hang")) == 1
    assert "over its limit of 0.7 s" in worker.text()
    assert worker.stop() == 0


def test_a_subscription_of_the_wrong_kind_keeps_a_worker_from_starting(one_stream: Stream) -> None:
    stream = one_stream
    stream.app.send("news", {"n": 0})
    wrong = stream.start("worker", app=APP)
    assert wrong.wait() == 2
    assert "topic = 'news': is a cluster topic" in wrong.text() and "--kind broadcast" in wrong.text()
    assert "Traceback" not in wrong.text()


def test_redis_wakes_a_listener(one_stream: Stream, redis_url: str) -> None:
    stream = one_stream
    _prepare(stream)
    worker = stream.worker(APP, settings={"redis_url": redis_url, "poll_max_s": 5}, topics=["news"])
    until(lambda: "Ready" in worker.text(), 20, "it is ready")
    stream.app = Ems("sender", url=stream.url, redis_url=redis_url)
    _send(stream, "news", range(1))
    _wait(stream, "heard", [0])
    latencies = []
    for n in range(1, 8):
        pause = time.monotonic() + 0.15
        until(lambda pause=pause: time.monotonic() > pause, 2, "idle")
        sent = machine_s()
        _send(stream, "news", range(n, n + 1))
        _wait(stream, "heard", [n])
        latencies.append(machine_s(stream.record.events("heard", n=n)[0]["at"]) - sent)
    print(f"broadcast over redis: median {sorted(latencies)[3] * 1000:.0f} ms, worst {max(latencies) * 1000:.0f} ms")
    assert sorted(latencies)[3] < 0.1 and max(latencies) < 1, latencies
    never(lambda: len(stream.record.events("heard")) > 8, 0.2, "heard twice")
    worker.send(signal.SIGKILL)
    assert worker.wait() == -signal.SIGKILL
    for pid in children_of(worker.pid):
        kill(pid, signal.SIGKILL)
