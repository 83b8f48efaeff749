"""A program on kombu alone, inside the process of a test."""

import socket
from contextlib import suppress
from typing import Any

import kombu

from tests.celery.brokers import Broker
from tests.support.waiting import until


class Program:
    """A program with a connection of its own; others see only what it writes to the stream.

    Args:
        event_ttl_s: differs, so that each program in this process has a stream of its own.
    """

    def __init__(self, broker: Broker, event_ttl_s: float, **options: Any) -> None:
        given = {"event_ttl_s": event_ttl_s, "lease_s": 3, **options}
        self.connection = kombu.Connection(broker.url, transport_options=given)
        self.channel = self.connection.channel()
        self.got: list[kombu.Message] = []

    def send(self, body: Any, queue: kombu.Queue | None = None, **options: Any) -> None:
        """Publish a message, by the default exchange if a queue is given."""
        if queue is not None:
            options |= {"routing_key": queue.name, "declare": [queue]}
        kombu.Producer(self.channel).publish(body, **options)

    def consume(self, *queues: kombu.Queue, **options: Any) -> kombu.Consumer:
        """Consume from queues into ``got``."""
        consumer = kombu.Consumer(self.channel, list(queues), on_message=self.got.append, **options)
        consumer.consume()
        return consumer

    def deliver(self, seconds: float = 0.1) -> None:
        """Deliver what is there."""
        with suppress(socket.timeout):
            self.connection.drain_events(timeout=seconds)

    def drain(self, seconds: float = 1.0) -> list[Any]:
        """Deliver what is there and return the bodies of all messages so far."""
        self.deliver(seconds)
        return [message.decode() for message in self.got]

    def until(self, count: int) -> list[kombu.Message]:
        """Deliver until there are so many messages."""
        until(lambda: len(self.drain(0.1)) >= count, 30, f"{count} messages")
        return self.got

    def close(self) -> None:
        """Close the connection."""
        self.connection.release()
