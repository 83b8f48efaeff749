"""Queues as topics of the stream: their length is limited, and groups of other programs read them, too."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from socket import timeout
from typing import Any

import kombu
import pytest

from emsworker import Ems
from emsworker.integrations.celery.names import queue_topic
from tests.celery.brokers import Broker
from tests.celery.project import Project, publish
from tests.support.waiting import until

_KEPT = "SELECT COUNT(*) FROM ems_message m JOIN ems_topic t ON t.id = m.topic_id AND m.`offset` > 0 WHERE t.name = %s"


@pytest.fixture
def app(broker: Broker) -> Iterator[Ems]:
    """A program of EMS on the same stream."""
    app = Ems("audit", url=broker.url.removeprefix("ems+"))
    yield app
    app.close()


def test_the_oldest_messages_beyond_the_length_are_dropped(broker: Broker) -> None:
    short = kombu.Queue("short", routing_key="short", max_length=10)
    other, got = kombu.Queue("other", routing_key="other"), list[Any]()
    with kombu.Connection(broker.url) as connection:
        producer = kombu.Producer(connection.channel())
        for number in range(30):
            producer.publish(number, routing_key="short", declare=[short])
        bound = short(connection.channel())
        # Any process that consumes, from whatever queue, looks after all of them.
        with kombu.Consumer(connection.channel(), [other], on_message=got.append):
            until(lambda: bound.queue_declare(passive=True).message_count == 10, 30, "ten are left")
        with kombu.Consumer(connection.channel(), [short], callbacks=[lambda body, message: got.append(body)]):

            def drained() -> bool:
                with suppress(timeout):
                    connection.drain_events(timeout=0.2)
                return len(got) >= 10

            until(drained, 30, "they are delivered")
    assert got == list(range(20, 30))


def test_another_group_audits_a_queue(start: Callable[..., Project], app: Ems) -> None:
    project, topic = start(), queue_topic("celery")
    project.run("work.apply_async((0,))")
    with app.consumer(topic, "audit") as audit:
        project.worker().wait_ready()
        publish(project, 20)
        project.wait_ended(20)
        assert project.rows(_KEPT, topic) == [(21,)], "what is not audited is kept"
        seen = list[Any]()
        while len(seen) < 21 and (messages := audit.fetch(100, wait=10)):
            seen += [(message.tag, message.body) for message in messages]
            audit.ack(*messages)
        print(seen[:2], len(seen))
    assert len(seen) == 21
    until(lambda: project.rows(_KEPT, topic) == [(0,)], 30, "all groups are done")
