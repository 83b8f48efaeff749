"""A Celery program has the privileges of its role, and those are enough."""

import socket
from contextlib import suppress

import kombu

from emsworker.local import LocalDatabase
from tests.celery.brokers import Broker
from tests.support.roles import users
from tests.support.waiting import until


def test_the_role_celery_is_enough(broker: Broker, server: LocalDatabase) -> None:
    with users(server, broker.url) as make:
        _use(make("celery"))


def _use(url: str) -> None:
    bodies = []

    def got(message: kombu.Message) -> None:
        bodies.append(message.decode())
        message.reject() if message.decode() == "bad" else message.ack()

    queue = kombu.Queue(
        "work", kombu.Exchange("e", "topic"), routing_key="#", max_priority=9, max_length=100, expires=60
    )
    replies = kombu.Queue("replies", exclusive=True, durable=False, auto_delete=True)
    with kombu.Connection(url) as connection:
        channel = connection.channel()
        with kombu.Consumer(channel, [queue, replies], on_message=got):
            producer = kombu.Producer(connection.channel())
            for body, eta in (("good", None), ("bad", None), ("late", "2100-01-01T00:00:00+00:00")):
                producer.publish(body, exchange="e", routing_key="any", headers={"eta": eta} if eta else {})
            producer.publish("reply", routing_key="replies")

            def drained() -> bool:
                with suppress(socket.timeout):
                    connection.drain_events(timeout=0.2)
                return len(bodies) == 3

            until(drained, 30, "all were delivered")
        assert sorted(bodies) == ["bad", "good", "reply"]
        bound = queue(channel)
        bound.purge()
        bound.delete()
