"""An offset that is taken before its row commits is waited for, closed by a tombstone, and never lost."""

import itertools
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from emsworker import Ems
from emsworker.core.model import Group, Topic
from emsworker.publish.allocators.redis import RedisAllocator
from emsworker.store.engine.session import Session
from emsworker.store.groups import claims, progress
from emsworker.store.stream.messages import Placement, close_hole
from tests.support import rows
from tests.support.streams import Stream, flush_of, wait_until

TOMBSTONES = "SELECT COUNT(*) FROM ems_message WHERE kind = 'tombstone' AND `offset` > 0"


class ProducerDied(BaseException):
    """What kill -9 is to everybody else."""


class Seam:
    """Waits between the allocation and the insert, or dies there.

    Args:
        inner: the real allocator.
        waits: seconds before each insert; ``None`` is death.
    """

    def __init__(self, inner: RedisAllocator, waits: Iterator[float | None]) -> None:
        self.inner, self.waits = inner, waits
        self.placed: list[int | None] = []

    def place(self, session: Session, topic_id: int, partition: int, count: int) -> Placement:
        placement = self.inner.place(session, topic_id, partition, count)
        self.placed.append(placement.base)
        wait = next(self.waits)
        if wait is None:
            raise ProducerDied
        time.sleep(wait)
        return placement

    def reseed(self, session: Session, topic_id: int, partition: int) -> None:
        self.inner.reseed(session, topic_id, partition)

    def landed(self, topic_id: int, partition: int, base: int, count: int) -> None:
        self.inner.landed(topic_id, partition, base, count)


def seamed(stream: Stream, redis_url: str, waits: Iterator[float | None]) -> tuple[Ems, Seam]:
    app = stream.app(allocator="redis", redis_url=redis_url)
    inner = app.stream.producer._allocator
    assert isinstance(inner, RedisAllocator)
    seam = Seam(inner, waits)
    app.stream.producer._allocator = seam
    return app, seam


@dataclass
class Reader(threading.Thread):
    """Reads a group to its end with claims of at most 50, and closes holes as the poller does."""

    stream: Stream
    topic: Topic
    group: Group
    gap_s: float
    seen: list[int] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.client_id = self.stream.client()

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        with self.stream.new_session() as session:
            while not self.stopping.is_set():
                work = claims.find_work(session, [self.group.id]).work.get(self.group.id, claims.AvailableWork())
                for partition in work.holes:
                    close_hole(session, self.topic.id, self.group.id, partition, self.gap_s)
                if not work.partitions or not self.take(session, work.partitions[0]):
                    time.sleep(0.005)

    def take(self, session: Session, partition: int) -> bool:
        claim = claims.take_range(session, self.stream.claimant(self.topic, self.group, self.client_id, 50), partition)
        if not claim:
            return False
        self.seen += [message.body for message in claim.messages]
        progress.flush(session, flush_of(claim, self.topic, claim.hi))
        return True


def readers(stream: Stream, topic: Topic, gap_s: float) -> list[Reader]:
    group = stream.group(topic)
    made = [Reader(stream, topic, group, gap_s) for _ in range(3)]
    for reader in made:
        reader.start()
    return made


def stop(made: list[Reader]) -> None:
    for reader in made:
        reader.stopping.set()
    for reader in made:
        reader.join(10)


def test_none_of_10000_is_lost_with_random_delays(stream: Stream, redis_url: str) -> None:
    topic = stream.topic()
    reading = readers(stream, topic, gap_s=0.02)  # far shorter than the delays: late producers meet tombstones
    placed: list[int] = []

    def met() -> Iterator[float]:
        # On a busy machine the readers may be slower than all the delays.
        wait_until(lambda: stream.value(TOMBSTONES), 30, "the first hole is met")
        yield 0.0

    def produce(number: int) -> None:
        rng = random.Random(number)
        waits = iter(lambda: rng.choice([0.0, 0.001, 0.03, 0.06]), -1)
        app, seam = seamed(stream, redis_url, waits if number else itertools.chain(met(), waits))
        for start in range(0, 2500, 50):
            app.send_many("t", range(number * 2500 + start, number * 2500 + start + 50))
        placed.append(len(seam.placed))

    producing = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
    for thread in producing:
        thread.start()
    for thread in producing:
        thread.join(60)
    wait_until(lambda: sum(len(reader.seen) for reader in reading) >= 10_000, 30, "reading everything")
    stop(reading)
    seen = [number for reader in reading for number in reader.seen]
    assert sorted(seen) == list(range(10_000))
    assert stream.value(TOMBSTONES) > 0 and sum(placed) > 200, "a producer came too late"


def test_a_dead_producer_leaves_one_tombstone_and_no_long_stall(stream: Stream, redis_url: str) -> None:
    topic = stream.topic()
    group = stream.group(topic)
    dying, seam = seamed(stream, redis_url, iter([None]))
    with pytest.raises(ProducerDied):
        dying.send("t", "never")
    assert seam.placed == [1]
    stream.app(allocator="redis", redis_url=redis_url).send("t", "after")
    age_s, looks = 0.0, 0
    while not close_hole(stream.session, topic.id, group.id, 0, 1.0):
        assert age_s < 1.0, "it was old enough before the look"
        age_s, looks = _age_s(stream), looks + 1
    assert _age_s(stream) >= 1.0
    assert looks > 0, "a hole that nobody had looked at is closed no earlier"
    assert [message.body for message in stream.take(topic, group, stream.client()).messages] == ["after"]
    assert stream.rows("SELECT `offset`, kind FROM ems_message WHERE `offset` > 0 ORDER BY 1") == [
        (1, "tombstone"),
        (2, "message"),
    ]


def _age_s(stream: Stream) -> float:
    """Of the message behind the hole, by the clock that decides."""
    return float(
        stream.value("SELECT TIMESTAMPDIFF(MICROSECOND, born_at, NOW(6)) / 1e6 FROM ems_message WHERE `offset` = 2")
    )


def test_a_late_producer_allocates_anew(stream: Stream, redis_url: str) -> None:
    topic = stream.topic()
    group = stream.group(topic)
    late, seam = seamed(stream, redis_url, iter([0.0, 0.0, 0.0]))
    inner_place = seam.inner.place

    def place(session: Session, topic_id: int, partition: int, count: int) -> Placement:
        placement = inner_place(session, topic_id, partition, count)
        if len(seam.placed) == 0:  # meanwhile another one sends, and the hole grows old
            stream.app(allocator="redis", redis_url=redis_url).send("t", "quick")
            assert close_hole(stream.session, topic.id, group.id, 0, 0.0)
        return placement

    seam.inner.place = place  # type: ignore[method-assign]
    receipt = late.send("t", "late")
    assert (receipt.offset, receipt.created) == (3, True)
    assert seam.placed == [1, 3]
    assert [message.body for message in stream.take(topic, group, stream.client()).messages] == ["quick", "late"]


def test_a_claim_stops_at_a_hole(stream: Stream, redis_url: str) -> None:
    app = stream.app()
    app.send_many("t", range(10))
    rows.lose(stream.rows, 1, 5, 6)
    topic = app.stream.catalog.topic("t")
    group = stream.group(topic)
    me = stream.client()
    claimant = stream.claimant(topic, group, me)
    assert not claims.take_range(stream.session, claimant, 0)
    assert claims.find_work(stream.session, [group.id]).work[group.id].holes == (0,)
    assert stream.cursor(group) == 1
    assert not close_hole(stream.session, topic.id, group.id, 0, 60.0), "the neighbour is young"
    assert close_hole(stream.session, topic.id, group.id, 0, 0.0)
    claim = stream.take(topic, group, me)
    assert (claim.lo, claim.hi, [m.offset for m in claim.messages]) == (1, 4, [2, 3, 4])
    assert not claims.take_range(stream.session, stream.claimant(topic, group, me), 0)
    assert close_hole(stream.session, topic.id, group.id, 0, 0.0)
    assert close_hole(stream.session, topic.id, group.id, 0, 0.0), "closed already: the way is free"
    claim = stream.take(topic, group, me)
    assert (claim.lo, claim.hi, [m.offset for m in claim.messages]) == (5, 10, [7, 8, 9, 10])
    assert not close_hole(stream.session, topic.id, group.id, 0, 0.0), "at the end there is no hole"


def test_another_groups_hole_is_closed_for_all(stream: Stream) -> None:
    app = stream.app()
    app.send_many("t", range(3))
    rows.lose(stream.rows, 1)
    topic = app.stream.catalog.topic("t")
    first, second = stream.group(topic, "a"), stream.group(topic, "b")
    assert close_hole(stream.session, topic.id, first.id, 0, 0.0)
    for group in (first, second):
        claim = stream.take(topic, group, stream.client())
        assert (claim.lo, claim.hi, len(claim.messages)) == (1, 3, 2)
