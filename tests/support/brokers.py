"""The two brokers, as tests of their contract see them."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from emsworker import Filter, Outgoing
from emsworker.broker.channel import Channel
from emsworker.broker.memory import MemoryBroker
from emsworker.broker.port import Broker
from emsworker.core.codec import Decoder
from emsworker.core.config import Settings
from emsworker.core.model import Claim, Group, Order, Receipt, Topic
from emsworker.core.work import AvailableWork, Claimant
from emsworker.store.stream import outbox
from tests.support.streams import Stream


@dataclass
class Place:
    """A broker, and what a test does with it.

    Args:
        client: registers a client.
        pass_time: lets seconds pass by the broker's clock, and moves what is due.
    """

    broker: Broker
    channel: Channel
    client: Callable[[], str]
    pass_time: Callable[[float], None]

    def send(self, *bodies: Any, topic: str = "t", **options: Any) -> list[Receipt]:
        """Send messages, as an app does."""
        outgoing = [Outgoing(topic, body, **options) for body in bodies]
        return self.broker.send(topic, [one.encode(Settings()) for one in outgoing])

    def work_of(self, group: Group) -> AvailableWork | None:
        """The work that is available to a group."""
        return self.channel.find_work([group.id]).work.get(group.id)

    def group(self, name: str = "g", wanted: Filter | None = None, order: Order = Order.NONE) -> tuple[Topic, Group]:
        """A group of the topic ``t``."""
        topic = self.broker.topic("t")
        return topic, self.broker.group(topic, name, wanted, order)

    def claimant(self, topic: Topic, group: Group, batch: int = 100, client: str | None = None) -> Claimant:
        """Who claims, with a new claim id."""
        return Claimant(topic, group, client or self.client(), batch, 4 << 20, Decoder())

    def take(self, topic: Topic, group: Group, batch: int = 100, partition: int = 0) -> Claim:
        """A claim of a partition; there must be one."""
        claim = self.channel.take_range(self.claimant(topic, group, batch), partition, wait=True)
        assert isinstance(claim, Claim), claim
        return claim

    def retries(self, topic: Topic, group: Group) -> Claim:
        """A claim of retries; there must be one."""
        claim = self.channel.take_retries(self.claimant(topic, group))
        assert isinstance(claim, Claim), claim
        return claim


def memory_place() -> Place:
    """A broker in memory, whose clock can be moved."""
    memory = MemoryBroker(Settings(), lambda name: Settings().new_topic())

    return Place(memory, memory.channel(), lambda: f"client-{uuid.uuid4().hex}", memory.advance)


def mysql_place(stream: Stream) -> Place:
    """The stream in MySQL; its times are moved into the past."""
    mysql = stream.app(priorities=10).stream

    def pass_time(seconds: float) -> None:
        args = {"s": seconds}
        with stream.sql.cursor() as cursor:
            for table in ("ems_retry", "ems_outbox"):
                late = "due_at = due_at - INTERVAL %(s)s SECOND WHERE due_at < '9000-01-01'"
                cursor.execute(f"UPDATE {table} SET {late}", args)
        outbox.relay_due(stream.session, 100)

    return Place(mysql, mysql.channel(), stream.client, pass_time)
