"""Limits of single tasks hold over several worker processes, also if one is killed, and other tasks are not held up."""

import signal
import time
from bisect import bisect_left
from collections import Counter

from emsworker.core.model import TASK_HEADER
from emsworker.publish.outgoing import Outgoing
from tests.process.stream import Stream
from tests.support.waiting import until
from tests.support.worker import kill

_APP = "tests.process.apps.task_limits:app"


def _most_in_a_second(starts: list[float]) -> int:
    return max(bisect_left(starts, at + 1.0) - number for number, at in enumerate(starts))


def _numbers(stream: Stream, event: str) -> Counter[int]:
    return Counter(one["n"] for one in stream.record.events(event))


def _most_at_once(stream: Stream, start: str, end: str, killed: int, killed_at: float) -> int:
    """How many ran at once; what a killed process ran ended with it."""
    changes = [(one["at"], -1) for one in stream.record.events(end)]
    changes += [(one["at"], 1) for one in stream.record.events(start)]
    lost = Counter(one["n"] for one in stream.record.events(start) if one["pid"] == killed)
    lost -= Counter(one["n"] for one in stream.record.events(end) if one["pid"] == killed)
    changes += [(killed_at, -1)] * lost.total()
    running = most = 0
    for _, step in sorted(changes):
        running += step
        most = max(most, running)
    return most


def _send(stream: Stream, name: str, numbers: range) -> None:
    headers = {TASK_HEADER: name}
    stream.app.publisher.publish("mixed", [Outgoing("mixed", [[n], {}], headers=dict(headers)) for n in numbers])


def test_limits_of_tasks_that_share_a_group(stream: Stream) -> None:
    settings = {"beat_s": 0.2}
    workers = [stream.start("worker", settings, app=_APP, threads=3) for _ in range(2)]
    for worker in workers:
        worker.wait_ready()
    for name, count in (("rated", 60), ("slow", 40), ("together", 40), ("free", 300)):
        _send(stream, name, range(count))
    until(lambda: len(_numbers(stream, "free")) == 300, 15, "they are not held up")
    assert len(_numbers(stream, "rated")) < 60, "it is held up by its own limit"
    until(lambda: _numbers(stream, "end").total() >= 5, 20, "it runs")
    pid = stream.record.events("start")[-1]["pid"]
    kill(pid, signal.SIGKILL)
    killed_at = time.monotonic()
    for name, count in (("rated", 60), ("end", 40), ("aend", 40)):
        until(lambda name=name, count=count: len(_numbers(stream, name)) == count, 40, name)  # type: ignore[misc]
    stream.wait_settled(30)
    assert _most_at_once(stream, "start", "end", pid, killed_at) == 2
    assert 2 <= _most_at_once(stream, "astart", "aend", pid, killed_at) <= 3
    starts = [one["at"] for one in stream.record.events("rated")]
    took_s = starts[-1] - starts[0]
    assert _most_in_a_second(starts) <= 1.5 * 20 + 1
    assert len(starts) <= 20 * (took_s + 0.5) + 1, "over time never more than the rate"
    assert not stream.rows("SELECT * FROM ems_dead")
    until(lambda: not stream.rows("SELECT * FROM ems_task_slot"), 10, "no place is left behind")
    assert all(worker.stop() == 0 for worker in workers)
