"""Redis's channel, on which anybody may publish who reaches Redis: a spoofed notification costs a needless look."""

import time
from collections.abc import Collection, Iterator

import pytest
import redis

from emsworker import Ems
from emsworker.consume.hints import Hint
from emsworker.consume.listener import Listener
from emsworker.consume.poller import Poller
from emsworker.core.config import Settings
from emsworker.publish.notifier import channel_of
from emsworker.store.engine.database import Database
from emsworker.store.engine.schema import stream_id
from tests.support.streams import Stream
from tests.support.waiting import until

SPOOFED = {
    "garbage": b"\xff\x00\x80 \r\n*1\r\n$4\r\nQUIT\r\n", "nothing": b"", "words": b"soon later never", "announced nothing": b"soon",
    "announced garbage": b"soon x", "negative": b"-1 -99999999", "too large": b"99999999999999999999999", "5,000 digits": b"9" * 5000,
    "fractions": b"1.5 1e9 0x10 1_0", "10 MB": b"7 " * 5_000_000, "a million places": b" ".join(b"%d" % n for n in range(1_000_000)),
    "announced a million": b"soon " + b" ".join(b"%d" % n for n in range(1_000_000)), "high levels": b"9000 9999 5000",
    "places without end": b"soon " + b" ".join(b"%d" % n for n in range(60)), "html": b"<script>", "code": b"__import__('os')",
}  # fmt: skip


class Heard:
    """What a listener tells, for a poller behind it."""

    def __init__(self, poller: Poller) -> None:
        self.calls: list[list[int]] = []
        self._poller = poller

    def told(self, topic_id: int, partitions: Collection[int]) -> None:
        self._poller.tell(topic_id, partitions)
        self.calls.append([*partitions])

    def announced(self, topic_id: int, partitions: Collection[int]) -> None:
        self._poller.announce(topic_id, partitions)
        self.calls.append([*partitions])


@pytest.fixture
def app(stream: Stream, redis_url: str) -> Iterator[Ems]:
    made = Ems("shop", url=stream.url, redis_url=redis_url)
    yield made
    made.close()


def test_a_spoofed_notification_is_never_more_than_a_needless_look(stream: Stream, redis_url: str, app: Ems) -> None:
    topic = stream.topic("t", partitions=3)
    group = stream.group(topic)
    died: list[str] = []
    poller = Poller(
        Database(stream.url), Settings(poll_min_s=60, poll_max_s=60), {group.id: topic}, [], lambda *_: None
    )
    heard, identity = Heard(poller), stream_id(stream.session)
    listener = Listener(redis_url, identity, [topic.id], heard.told, lambda name, _: died.append(name), heard.announced)
    listener.start()
    channel = channel_of(identity, topic.id)
    possible = {Hint(group.id, "stream", number) for number in range(3)}
    poller._notified = True
    poller.step()  # the group is open for hints now
    try:
        with redis.Redis.from_url(redis_url) as spoofer:
            until(lambda: spoofer.publish(channel, b"0"), 20, "it listens")
            for count, text in enumerate([*SPOOFED.values()], 2):
                spoofer.publish(channel, text)
                until(lambda count=count: len(heard.calls) >= count, 20, "it was heard")
                assert len(heard.calls[-1]) <= 64 and {*poller._hints} | {*poller._announced} <= possible, text[:50]
            spoofer.publish(f"ems:{identity}:wake:99999", b"1")
            app.send("t", 1, partition=2)
            wanted = Hint(group.id, "stream", 2)  # announced first, and told after the commit
            until(lambda: wanted in poller._hints, 20, "a real one is heard after all of them")
        assert listener.is_alive() and not died
    finally:
        listener.stop()
        listener.join(10)
        poller.shut_down()


def test_a_flood_of_spoofed_places_makes_no_list_that_grows(stream: Stream) -> None:
    topic = stream.topic("t", partitions=3)
    group = stream.group(topic)
    poller = Poller(
        Database(stream.url), Settings(poll_min_s=60, poll_max_s=60), {group.id: topic}, [], lambda *_: None
    )
    poller._notified = True
    poller.step()
    began = time.process_time()
    for first in range(0, 60_000, 60):
        poller.tell(topic.id, range(first, first + 60))
        poller.announce(topic.id, range(first, first + 60))
    assert len(poller._hints) <= 3 and len(poller._announced) <= 3 and poller._notified
    assert time.process_time() - began < 5
    poller.shut_down()
