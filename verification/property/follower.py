"""A model of what groups of a stream deliver, and a driver that settles by chance, loses packets and dies."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from emsworker import Ems, FenceLost, Message, PullConsumer, StoreUnavailable
from emsworker.core.model import Order
from emsworker.store import topics
from tests.support.proxy import Cut, Proxy
from tests.support.streams import Stream
from tests.support.waiting import until

SETTINGS: dict[str, Any] = {
    "ack_interval_s": 0.02,
    "ladder": "1ms",
    "max_attempts": 60000,
    "jitter": 0,
    "lease_s": 600,
    "renew_s": 0.5,
    "poll_max_s": 0.05,
    "gap_timeout_s": 0.05,
}
_ANY = b""
# What a lost packet holds: a claim, the progress of one, what is moved out of one, a retry that is done, and any.
_MARKERS = [b"MAX(r.`offset`)", b"SET acked_to", b"deadline_at, detached", b"DELETE FROM ems_retry", b"COMMIT", _ANY]
_LAST_STEPS = 10
_OWN = "SELECT 1 FROM ems_claim WHERE state = 'start' AND client_id = %s"
_UNFINISHED = """
WITH asked AS (SELECT g.id FROM ems_group g JOIN ems_topic t ON t.id = g.topic_id WHERE t.name = %s AND g.name = %s)
SELECT c.state, COUNT(*) FROM ems_claim c WHERE c.group_id = (SELECT id FROM asked) AND c.state <> 'done' GROUP BY 1
UNION ALL SELECT 'retry', COUNT(*) FROM ems_retry r WHERE r.group_id = (SELECT id FROM asked)
"""


class State(Enum):
    """State of a message in the model of a group."""

    OPEN = "must be delivered"
    HELD = "in hand"
    SETTLED = "acked or buried, and perhaps not written down"
    DONE = "acked or buried, and written down"
    MAYBE = "settled before a crash, and perhaps not written down"


class Sent:
    """Messages of a topic, each of which holds its number.

    Args:
        stream: on which the topic is created.
        name: of the topic.
        settings: of the topic.
    """

    def __init__(self, stream: Stream, name: str, **settings: Any) -> None:
        self.name = name
        self._app = stream.app(**SETTINGS)
        self.topic = topics.create_topic(stream.session, name, **settings)
        self.keys: list[str | None] = []
        self.partitions: list[int] = []
        self._groups: list[GroupModel] = []

    def group(self, name: str, order: Order) -> GroupModel:
        """A model of a group that has delivered nothing."""
        model = GroupModel(self, name, order)
        self._groups.append(model)
        return model

    def send(self, count: int) -> None:
        """Send some messages."""
        for n in range(len(self.keys), len(self.keys) + count):
            key = f"key-{n % 4}" if n % 5 else None
            place: dict[str, Any] = {"key": key} if key else {"partition": 0}
            if self.topic.priorities > 1:
                place = {"priority": n * 7 % 10}
            receipt = self._app.send(self.name, n, **place)
            self.keys.append(key)
            self.partitions.append(receipt.partition)
            for group in self._groups:
                group.states[n] = State.OPEN


@dataclass
class GroupModel:
    """States of the messages of a group, by number.

    Args:
        sent: the messages.
        name, order: of the group.
    """

    sent: Sent
    name: str
    order: Order
    states: dict[int, State] = field(default_factory=dict)

    def deliver(self, number: int) -> None:
        """Check that a message may be delivered now."""
        assert self.states[number] in (State.OPEN, State.MAYBE), f"{number} was {self.states[number].value}"
        lane = self._lane(number)
        if lane is not None:
            before = [one for one in range(number) if self._lane(one) == lane]
            open_before = [one for one in before if self.states[one] in (State.OPEN, State.HELD)]
            assert not open_before, f"{number} overtook {open_before} of {lane}"
        self.states[number] = State.HELD

    def _lane(self, number: int) -> object:
        """What orders a message among others; ``None`` if nothing does."""
        lanes: dict[Order, Sequence[object]] = {Order.PARTITION: self.sent.partitions, Order.KEY: self.sent.keys}
        return lanes[self.order][number] if self.order in lanes else None

    def become(self, before: State, after: State) -> None:
        """Change all messages of a state."""
        self.states |= {number: after for number, state in self.states.items() if state is before}

    @property
    def is_open(self) -> bool:
        """True if a message must still be delivered."""
        return State.OPEN in self.states.values()


class Follower:
    """Drives consumers of some groups, one after the other, by chance, and checks what they deliver.

    Args:
        stream: looks behind the scenes.
        url: of the stream, through the proxy.
        proxy: loses packets.
        groups: of different topics.
        seed: of everything that happens.
    """

    def __init__(self, stream: Stream, url: str, proxy: Proxy, groups: Sequence[GroupModel], seed: int) -> None:
        self._stream, self._proxy = stream, proxy
        self._groups = {group.sent.name: group for group in groups}
        self._random = random.Random(seed)
        self._app = Ems("follower", url=url, **SETTINGS)
        self._held: list[Message] = []
        self.happened = Counter[str]()
        self._consumer = self._open()

    def _open(self) -> PullConsumer:
        prefetch = self._random.choice([3, 10, 40])
        first, *others = self._groups.values()
        order = None if first.order is Order.NONE else first.order.value
        consumer = self._app.consumer(first.sent.name, first.name, prefetch=prefetch, order=order)
        consumer.claim_ahead(self._random.choice([0.0, 0.01, 1.0]))
        consumer.open()
        for other in others:
            consumer.add(other.sent.name, other.name)
        return consumer

    # -- steps ---------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Do something by chance."""
        roll = self._random.random()
        if roll < (0.03 if self._proxy.armed else 0.22):  # a rare packet gets its chance
            self._proxy.arm(self._random.choice(_MARKERS), self._cut())
        elif roll < 0.45:
            self.fetch(self._random.randint(1, 20), 0.05)
        elif roll < 0.465:
            self._crash()
        elif roll < 0.48:
            self._crash_at_a_packet()
        elif roll < 0.51:
            self._close()
        elif roll < 0.54:
            self._outage(recovered=self._random.random() < 0.5)
        elif roll < 0.59:
            self._flush()
        else:
            self._settle()

    def _cut(self) -> Cut:
        return self._random.choice([Cut.BEFORE, Cut.AFTER, Cut.AFTER])

    def fetch(self, n: int, wait: float) -> None:
        """Fetch messages and check that they may be delivered."""
        try:
            messages = self._consumer.fetch(n, wait=wait)
        except StoreUnavailable:  # its packet was lost, and the time was over before another one was answered
            return
        for message in messages:
            self._group_of(message).deliver(message.body)
            self._held.append(message)

    def _group_of(self, message: Message) -> GroupModel:
        return self._groups[message.topic]

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
            self._group_of(message).states[message.body] = State.SETTLED if roll < 0.8 else State.OPEN

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
        self.happened["crashes"] += 1
        self._die()
        self._go_on_after_death()

    def _crash_at_a_packet(self) -> None:
        """End as kill -9 does while a packet is on its way: it is the last that the server gets, or does not get."""
        self.happened["crashes at a packet"] += 1
        self._proxy.arm(self._random.choice(_MARKERS), self._cut(), is_last=True)
        for _ in range(_LAST_STEPS):
            if not self._proxy.armed:
                break
            if self._random.random() < 0.4:
                self.fetch(self._random.randint(1, 20), 0.02)
            else:
                self._settle()
        if self._proxy.armed:
            self._proxy.arm(_ANY, self._cut(), is_last=True)
        assert self._proxy.wait_shut(10), "the lease is renewed before that"
        self._die()
        self._proxy.let_through()
        self._go_on_after_death()

    def _die(self) -> None:
        """End the threads of the consumer; nothing more is written down."""
        for side in self._consumer._sides:
            side.stop()
        for side in self._consumer._sides:
            side.join(10)
        self._consumer._open = False
        self._consumer._claiming.close()
        self._consumer._flusher.close()

    def _go_on_after_death(self) -> None:
        self._stream.rows("DELETE FROM ems_client WHERE client_id = %s", self._client)
        self._stream.recover()
        self._become(State.SETTLED, State.MAYBE)
        self._give_up_held()
        self._consumer = self._open()

    @property
    def _client(self) -> str:
        return self._consumer._claiming._client_id

    def _outage(self, *, recovered: bool) -> None:
        """Let the lease run out, as if the server had been away; perhaps another one recovers before it comes back."""
        self.happened["outages"] += 1
        lease = self._consumer._lease
        with lease._mutex:  # it is not renewed meanwhile
            gaps = lease.gaps
            self._stream.expire(self._client)
            if recovered:
                until(self._is_taken_from, 10, "what was in hand is given to others")
        until(lambda: lease.renew() or lease.gaps > gaps, 10, "the lease is taken up")
        if recovered:
            with suppress(FenceLost):  # of what was settled, and not written down
                self._consumer.flush()
            self._become(State.SETTLED, State.MAYBE)
            self._give_up_held()

    def _is_taken_from(self) -> bool:
        """Recover; true if nothing is left to the consumer, whose packet may hold a lock, or whose clock may be set back."""
        self._stream.recover()
        return not self._stream.rows(_OWN, self._client)

    def _become(self, before: State, after: State) -> None:
        for group in self._groups.values():
            group.become(before, after)

    def _give_up_held(self) -> None:
        self._become(State.HELD, State.OPEN)
        self._held = []

    # -- the end -------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Ack all that is left, and check that nothing is lost."""
        for _ in range(150):
            self._ack_held()
            if not any(group.is_open for group in self._groups.values()):
                break
            self._stream.recover()  # what an answer that was lost has left behind has no owner at most
            self.fetch(40, 0.2)
        self._flush()
        for group in self._groups.values():
            left = [number for number, state in group.states.items() if state is State.OPEN]
            assert not left, f"never delivered again to {group.name}: {left}"
        self._proxy.disarm()
        until(self._is_done_with_all, 30, "what a crash has left is run again")
        self._close()
        self._consumer.close()
        self._app.close()
        assert self._unfinished() == []

    def _is_done_with_all(self) -> bool:
        """Take what may be delivered again, until nothing is; true if nothing is left."""
        self.fetch(40, 0.05)
        self._ack_held()
        self._flush()
        self._stream.recover()  # what an answer that was lost has taken
        return not self._unfinished()

    def _ack_held(self) -> None:
        self._consumer.ack(*self._held)
        self._become(State.HELD, State.SETTLED)
        self._held = []

    def _unfinished(self) -> list[tuple[str, str, int]]:
        """Groups that are not done with their messages: what is left, and how much of it."""
        return [
            (group.name, what, count)
            for group in self._groups.values()
            for what, count in self._stream.rows(_UNFINISHED, group.sent.name, group.name)
            if count
        ]
