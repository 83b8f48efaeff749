"""A worker whose app has a thousand subscriptions."""

import time

import pytest

from tests.process.apps.many import COUNT
from tests.process.stream import Stream
from tests.support.waiting import until

pytestmark = [pytest.mark.few, pytest.mark.slow]


def _statements(stream: Stream) -> int:
    return int(stream.rows("SHOW GLOBAL STATUS LIKE 'Questions'")[0][1])


def test_a_thousand_subscriptions_start_idle_cheaply_and_are_all_served(one_stream: Stream) -> None:
    stream = one_stream
    worker = stream.start("worker", {"beat_s": 1}, app="tests.process.apps.many:app", threads=3)
    until(lambda: "Ready: " in worker.text(), 300, "it has made its topics and is ready")
    stream.send(f"many.{COUNT - 1}", [{"n": 1}])
    stream.wait_ended([1], 30)
    begun, before = time.monotonic(), _statements(stream)
    until(lambda: time.monotonic() - begun > 5, 30, "a while", poll_s=1)
    rate = (_statements(stream) - before) / (time.monotonic() - begun)
    assert rate < 30, f"{rate:.0f} statements a second: it looks for all groups by one statement"
    stream.send("many.0", [{"n": 2}])
    stream.wait_ended([2], 30)
    assert worker.stop() == 0
