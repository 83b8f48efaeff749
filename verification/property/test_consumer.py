"""Settling in any order, while packets are lost and the consumer dies: nothing is lost, and what was acked stays done.

A model follows each message of a topic. What was settled and written down is never delivered again; what was settled
since the last write may be, but only after a crash, or after an outage in which others took it; everything else is
delivered until it is settled. An outage that is longer than the lease changes nothing if nobody else was faster.
"""

import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from typing import Any

import pytest

from emsworker import Ems, FenceLost, Message, PullConsumer, StoreUnavailable
from emsworker.core.model import Order
from tests.support.proxy import Cut, Proxy, proxied
from tests.support.streams import Stream
from tests.support.waiting import until
from verification.property.settings import LONG_S, rounds

_MESSAGES, _STEPS, _SEEDS = 60, 100, 3
_SETTINGS: dict[str, Any] = {
    "ack_interval_s": 0.02,
    "ladder": "1ms",
    "max_attempts": 60000,
    "jitter": 0,
    "lease_s": 600,
    "renew_s": 0.5,
    "poll_max_s": 0.05,
    "gap_timeout_s": 0.05,
}


# What a lost packet holds: a claim, the progress of one, what is moved out of one, a retry that is done, and any.
_MARKERS = [b"MAX(r.`offset`)", b"SET acked_to", b"deadline_at, detached", b"DELETE FROM ems_retry", b"COMMIT"]


class State(Enum):
    """State of a message in the model."""

    OPEN = "must be delivered"
    HELD = "in hand"
    SETTLED = "acked or buried, and perhaps not written down"
    DONE = "acked or buried, and written down"
    MAYBE = "settled before a crash, and perhaps not written down"


class Follower:
    """Drives consumers of one group by chance, and checks what they deliver.

    Args:
        stream: looks behind the scenes.
        url: of the stream, through the proxy.
        proxy: loses packets.
        order: of the group.
        seed: of everything that happens.
    """

    def __init__(self, stream: Stream, url: str, proxy: Proxy, order: Order, seed: int) -> None:
        self._stream, self._proxy, self._order = stream, proxy, order
        self._random = random.Random(seed)
        self._app = Ems("follower", url=url, **_SETTINGS)
        self._topic, self._states = f"t-{order.value}-{seed}", dict[int, State]()
        self._lanes: dict[int, object] = {}
        self._held: list[Message] = []
        self.crashes = self.outages = 0
        self.delivered = Counter[int]()
        self._consumer = self._open()

    def _open(self) -> PullConsumer:
        prefetch = self._random.choice([3, 10, 40])
        order = None if self._order is Order.NONE else self._order.value
        return self._app.consumer(self._topic, "g", prefetch=prefetch, order=order).open()

    def send(self, count: int) -> None:
        """Send some messages."""
        topic = self._stream.app(**_SETTINGS)
        for n in range(len(self._states), len(self._states) + count):
            key = f"key-{n % 4}" if n % 5 else None
            receipt = topic.send(self._topic, n, key=key, partition=None if key else 0)
            self._states[n] = State.OPEN
            self._lanes[n] = receipt.partition if self._order is Order.PARTITION else key

    # -- steps ---------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Do something by chance."""
        roll = self._random.random()
        if roll < (0.03 if self._proxy.armed else 0.22):  # a rare packet gets its chance
            self._proxy.arm(self._random.choice(_MARKERS), self._random.choice([Cut.BEFORE, Cut.AFTER, Cut.AFTER]))
        elif roll < 0.45:
            self.fetch(self._random.randint(1, 20), 0.05)
        elif roll < 0.48:
            self._crash()
        elif roll < 0.51:
            self._close()
        elif roll < 0.54:
            self._outage(recovered=self._random.random() < 0.5)
        elif roll < 0.59:
            self._flush()
        else:
            self._settle()

    def fetch(self, n: int, wait: float) -> None:
        """Fetch messages and check that they may be delivered."""
        try:
            messages = self._consumer.fetch(n, wait=wait)
        except StoreUnavailable:  # its packet was lost, and the time was over before another one was answered
            return
        for message in messages:
            number = message.body
            self.delivered[number] += 1
            assert self._states[number] in (State.OPEN, State.MAYBE), f"{number} was {self._states[number].value}"
            lane = self._lanes[number]
            if self._order is not Order.NONE and lane is not None:
                before = [one for one in range(number) if self._lanes[one] == lane]
                open_before = [one for one in before if self._states[one] in (State.OPEN, State.HELD)]
                assert not open_before, f"{number} overtook {open_before} of {lane}"
            self._states[number] = State.HELD
            self._held.append(message)

    def _settle(self) -> None:
        if not self._held:
            return
        chosen = self._random.sample(self._held, self._random.randint(1, min(4, len(self._held))))
        self._held = [message for message in self._held if message not in chosen]
        roll = self._random.random()
        if roll < 0.7:
            self._consumer.ack(*chosen)
        elif roll < 0.8:
            self._consumer.nack(*chosen, dead=True)
        elif roll < 0.9:
            self._consumer.nack(*chosen, delay=self._random.choice([None, 0, 0.01]))
        else:
            self._consumer.release(*chosen)
        for message in chosen:
            self._states[message.body] = State.SETTLED if roll < 0.8 else State.OPEN

    def _flush(self) -> None:
        self._consumer.flush()
        self._become(State.SETTLED, State.DONE)

    def _close(self) -> None:
        """End in order, with messages in hand."""
        self._consumer.close()
        self._become(State.SETTLED, State.DONE)
        self._give_up_held()
        self._consumer = self._open()

    def _crash(self) -> None:
        """End as kill -9 does, and let the beat recover what was in hand."""
        self.crashes += 1
        die(self._consumer)
        self._stream.rows("DELETE FROM ems_client")
        self._stream.recover()
        self._become(State.SETTLED, State.MAYBE)
        self._give_up_held()
        self._consumer = self._open()

    def _outage(self, *, recovered: bool) -> None:
        """Let the lease run out, as if the server had been away; perhaps another one recovers before it comes back."""
        self.outages += 1
        self._stream.rows("UPDATE ems_client SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 1000 MICROSECOND")
        if recovered:
            self._stream.recover()
        gaps = self._consumer._lease.gaps
        until(lambda: self._consumer._lease.renew() or self._consumer._lease.gaps > gaps, 10, "the lease is taken up")
        if recovered:
            with suppress(FenceLost):  # of what was settled, and not written down
                self._consumer.flush()
            self._become(State.SETTLED, State.MAYBE)
            self._give_up_held()

    def _become(self, before: State, after: State) -> None:
        self._states |= {number: after for number, state in self._states.items() if state is before}

    def _give_up_held(self) -> None:
        self._become(State.HELD, State.OPEN)
        self._held = []

    # -- the end -------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Ack all that is left."""
        for _ in range(150):
            self._consumer.ack(*self._held)
            self._become(State.HELD, State.SETTLED)
            self._held = []
            if State.OPEN not in self._states.values():
                break
            self._stream.recover()  # what an answer that was lost has left behind has no owner at most
            self.fetch(40, 0.2)
        self._flush()
        left = [number for number, state in self._states.items() if state is State.OPEN]
        assert not left, f"never delivered again: {left}"
        self.fetch(40, 0.2)
        self._consumer.ack(*self._held)
        self._close()
        self._consumer.close()
        self._app.close()

    def check_tables(self) -> None:
        """Nothing is left in hand once the beat has looked for what an answer that was lost at the end has taken."""
        self._stream.recover()
        found = self._stream.rows(
            "SELECT c.lo, c.hi, c.acked_to, c.state, c.source FROM ems_claim c JOIN ems_group g ON g.id = c.group_id "
            "JOIN ems_topic t ON t.id = g.topic_id WHERE t.name = %s AND c.state = 'start'",
            self._topic,
        )
        assert found == []


def die(consumer: PullConsumer) -> None:
    """End the threads of a consumer; nothing more is written down."""
    for side in consumer._sides:
        side.stop()
    for side in consumer._sides:
        side.join(10)
    consumer._open = False
    consumer._claiming.close()
    consumer._settler.close()


@pytest.fixture
def losing(stream: Stream) -> Iterator[tuple[Proxy, str]]:
    with proxied(stream.url) as (proxy, url):
        yield proxy, url


@pytest.mark.timeout(LONG_S * 2 + 300)
@pytest.mark.parametrize("order", list(Order))
def test_any_order_of_ends_and_losses_keeps_the_promises(
    stream: Stream, losing: tuple[Proxy, str], order: Order
) -> None:
    proxy, url = losing
    first = int(os.environ.get("EMS_TEST_SEED") or (random.SystemRandom().getrandbits(30) if LONG_S else 1))
    seeds = 0
    for _ in rounds(LONG_S):
        for seed in range(first + seeds, first + seeds + _SEEDS):
            follower = Follower(stream, url, proxy, order, seed)
            follower.send(_MESSAGES // 2)
            for number in range(_STEPS):
                if number == _STEPS // 2:
                    follower.send(_MESSAGES // 2)
                try:
                    follower.step()
                except Exception as error:
                    error.add_note(f"seed {seed}, order {order.value}, step {number}")
                    raise
            follower.drain()
            follower.check_tables()
        seeds += _SEEDS
    print(f"order={order.value}: {seeds} seeds, {proxy.cuts} packets lost")
