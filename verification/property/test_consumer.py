"""Settling in any order, while packets are lost and the consumer dies: nothing is lost, and what was acked stays done.

A model follows each message of each group. What was settled and written down is never delivered again; what was settled
since the last write may be, but only after a crash, or after an outage in which others took it; everything else is
delivered until it is settled. An outage that is longer than the lease changes nothing if nobody else was faster. Groups
of one topic do not touch each other, also while messages that all of them are done with are deleted.
"""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest

from emsworker.beat.retention import trim
from emsworker.core.model import Order
from tests.support.proxy import Proxy, proxied
from tests.support.streams import Stream
from verification.property.follower import Follower, Sent
from verification.property.settings import LONG_S, rounds

_MESSAGES, _STEPS, _SEEDS = 60, 100, 3


class Crowd:
    """Followers of a stream, each behind a proxy of its own.

    Args:
        stream: the stream.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._stack = ExitStack()
        self._places: list[tuple[Proxy, str]] = []
        self.happened = Counter[str]()

    def __enter__(self) -> "Crowd":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def place(self, number: int) -> tuple[str, Proxy]:
        """The address and the proxy of a follower."""
        while number >= len(self._places):
            self._places.append(self._stack.enter_context(proxied(self.stream.url)))
        proxy, url = self._places[number]
        return url, proxy

    def run(self, topics: Sequence[Sent], followers: Sequence[Follower], chance: random.Random) -> None:
        """Let the followers take steps in any order, and check that nothing is lost in the end."""
        settings = self.stream.app().settings
        steps = _STEPS * len(followers)
        for number in range(steps):
            if number in (0, steps // 2):
                for topic in topics:
                    topic.send(_MESSAGES // 2)
            try:
                chance.choice(followers).step()
                if chance.random() < 0.1:
                    trim(self.stream.session, settings)
            except Exception as error:
                error.add_note(f"step {number}")
                raise
        for follower in followers:
            follower.drain()
            self.happened += follower.happened

    def summary(self) -> str:
        """What happened."""
        cuts = sum(proxy.cuts for proxy, _ in self._places)
        return f"{cuts} packets lost, {dict(self.happened)}"


@pytest.fixture
def crowd(stream: Stream) -> Iterator[Crowd]:
    with Crowd(stream) as made:
        yield made


def _for_seeds(work: Callable[[int], None]) -> int:
    """Call ``work`` with some seeds; returns their number."""
    first = int(os.environ.get("EMS_TEST_SEED") or (random.SystemRandom().getrandbits(30) if LONG_S else 1))
    seeds = 0
    for _ in rounds(LONG_S):
        for seed in range(first + seeds, first + seeds + _SEEDS):
            try:
                work(seed)
            except Exception as error:
                error.add_note(f"seed {seed}")
                raise
        seeds += _SEEDS
    return seeds


@pytest.mark.timeout(LONG_S * 2 + 300)
@pytest.mark.parametrize("order", list(Order))
def test_any_order_of_ends_and_losses_keeps_the_promises(stream: Stream, crowd: Crowd, order: Order) -> None:
    def work(seed: int) -> None:
        topic = Sent(stream, f"t-{order.value}-{seed}")
        follower = Follower(stream, *crowd.place(0), [topic.group("g", order)], seed)
        crowd.run([topic], [follower], random.Random(seed))

    seeds = _for_seeds(work)
    print(f"order={order.value}: {seeds} seeds, {crowd.summary()}")


@pytest.mark.timeout(LONG_S * 2 + 300)
def test_groups_of_one_topic_and_several_queues_of_one_consumer_keep_the_promises(stream: Stream, crowd: Crowd) -> None:
    """Two queues as Celery has them, read by one worker; audited by other groups, one of them in order."""

    def work(seed: int) -> None:
        ranked = Sent(stream, f"ranked-{seed}", keep_done_s=0, priorities=3)
        plain = Sent(stream, f"plain-{seed}", keep_done_s=0)
        reads = (
            [ranked.group("celery", Order.NONE), plain.group("celery", Order.NONE)],
            [ranked.group("audit", Order.NONE)],
            [plain.group("in-order", Order.KEY), ranked.group("replay", Order.NONE)],
        )
        followers = [
            Follower(stream, *crowd.place(number), groups, 10 * seed + number) for number, groups in enumerate(reads)
        ]
        crowd.run([ranked, plain], followers, random.Random(seed))
        while trim(stream.session, stream.app().settings) == 0.0:
            pass
        names = (ranked.name, plain.name)
        kept = "SELECT COUNT(*) FROM ems_message m JOIN ems_topic t ON t.id = m.topic_id AND m.`offset` > 0 WHERE t.name IN %s"
        assert stream.value(kept, names) == 0, "every group is done with every message"

    seeds = _for_seeds(work)
    print(f"several groups: {seeds} seeds, {crowd.summary()}")
