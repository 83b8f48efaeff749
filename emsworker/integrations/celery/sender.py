"""Publishing: each copy of a message goes to the topic of its queue, all in one transaction."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from emsworker.extending.apps import MysqlBroker
from emsworker.extending.errors import MessageTooLarge
from emsworker.extending.processes import forks
from emsworker.extending.values import NewMessage, Topic
from emsworker.integrations.celery.background import Background
from emsworker.integrations.celery.bindings import Bindings
from emsworker.integrations.celery.messages import Stored
from emsworker.integrations.celery.names import HEARTBEAT
from emsworker.integrations.celery.options import StreamOptions
from emsworker.integrations.celery.transaction import callers_connection

_EARLY_S = 1.0  # a task leaves the outbox this long before its ETA, which its worker then keeps exactly

Places = list[tuple[Topic, NewMessage]]


class QueueSender:
    """Sends messages to exchanges; thread-safe."""

    def __init__(self, broker: MysqlBroker, bindings: Bindings, options: StreamOptions) -> None:
        self._broker, self._bindings, self._options = broker, bindings, options
        self._lock = forks.Lock()
        self._background: Background | None = None

    def send(self, stored: Stored, exchange: str, routing_key: str) -> None:
        """Send a message to wherever an exchange routes it; nowhere, if no queue is bound.

        In a block of :func:`in_transaction` it is written over the caller's connection, whose errors are raised as they
        are.

        Raises:
            MessageTooLarge: nothing was sent.
            StoreUnavailable, PublishTimeout: it may or may not have been sent.
            TopicDeleted: a queue was deleted meanwhile.
        """
        connection = callers_connection()
        proven = connection is None and self._options.confirm_publish
        later, now = self.places(stored, exchange, routing_key, proven=proven)
        if connection is not None:
            if places := [*later, *now]:
                self._broker.outbox.send_together(places, connection)
            return
        if later:
            self._broker.outbox.send_together(later)
        if now and self._options.confirm_publish:
            self._broker.producer.send_together(now)
        elif now:
            self._in_background().put(now)

    def _in_background(self) -> Background:
        with self._lock:
            if self._background is None or not self._background.is_alive():
                self._background = Background(self._broker.producer)
                self._background.start()
            return self._background

    def flush(self) -> None:
        """Wait until everything that was published without confirmation is sent."""
        if self._background is not None:
            self._background.flush(self._broker.settings.publish_timeout_s)

    def places(self, stored: Stored, exchange: str, routing_key: str, *, proven: bool) -> tuple[Places, Places]:
        """Return the copies of a message with their topics: those that wait in the outbox, and those for now.

        Args:
            proven: see :meth:`Bindings.route`.
        """
        route = self._bindings.route(exchange, routing_key, proven=proven)
        proven &= len(route) == 1  # if one of several topics was deleted, the others get their messages nevertheless
        due_at = self._due_at(stored.eta)
        later: Places = []
        now: Places = []
        for queue in route.queues.values():
            topic = self._bindings.topic_of(queue, proven=proven)
            if topic is None:
                continue
            message = stored.copy(stored.task, self._bindings.level_of(topic, stored.priority))
            message.due_at = due_at
            (now if due_at is None else later).append((_fits(topic, message), message))
        for bus in route.buses.values():
            topic = self._bindings.topic(bus, proven=proven)
            if topic is not None:
                message = stored.copy(routing_key)
                message.is_urgent = routing_key != HEARTBEAT
                now.append((_fits(topic, message), message))
        return later, now

    def _due_at(self, eta: datetime | None) -> datetime | None:
        if eta is None or (eta - datetime.now(UTC)).total_seconds() <= self._options.eta_threshold_s:
            return None
        return eta - timedelta(seconds=min(_EARLY_S, self._options.eta_threshold_s))


def _fits(topic: Topic, message: NewMessage) -> Topic:
    if len(message.body) > topic.max_message_bytes:
        raise MessageTooLarge(
            f"a body of {len(message.body)} bytes is over the limit of topic {topic.name!r}, "
            f"{topic.max_message_bytes} bytes; nothing was sent (`ems topics change` sets the limit)"
        )
    return topic
