"""A channel of kombu: queues, exchanges, publishing, consuming and settling."""

from __future__ import annotations

import logging
import socket
import sys
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, Protocol

from amqp.exceptions import ChannelError, NotFound, PreconditionFailed, RecoverableConnectionError
from amqp.protocol import queue_declare_ok_t
from kombu.transport.base import Message as Delivered
from kombu.transport.base import StdChannel, to_rabbitmq_queue_arguments

from emsworker.extending.consuming import PullConsumer, ReadGroup
from emsworker.extending.errors import DecodeError, EmsError, NotInHand, TopicDeleted
from emsworker.extending.processes import forks
from emsworker.extending.stream import backlog, topics
from emsworker.extending.values import Message as StreamMessage
from emsworker.integrations.celery.arguments import check_names, check_queue, number_of, seconds_of
from emsworker.integrations.celery.failures import Requeued
from emsworker.integrations.celery.fanout import LocalQueue
from emsworker.integrations.celery.feeder import Arrival, Feeder
from emsworker.integrations.celery.inbox import Delivery, Inbox
from emsworker.integrations.celery.malformed import check_call
from emsworker.integrations.celery.messages import Envelope, Published, Stored
from emsworker.integrations.celery.names import GROUP
from emsworker.integrations.celery.revocations import tell_worker
from emsworker.integrations.celery.store.routing import Binding, ExchangeKind, Queue, TargetKind
from emsworker.integrations.celery.streams import Stream

log = logging.getLogger(__name__)

_UNLIMITED = 100_000
_WORKER, _TASKS = "celery.worker.", "celery.worker.consumer.consumer"  # who gets tasks, commands and events of others
_DELETIONS = 5
# Work that is claimed beyond the prefetch, the time of about ten commits: at whatever prefetch a claim takes many
# messages, and no process waits for one. Slow tasks, of which less than one ends in that time, are not claimed ahead.
_AHEAD_S = 0.03


class EstablishedConnection(Protocol):
    """The connection of a channel."""

    client: Any
    stream: Stream
    inbox: Inbox

    def next_channel_id(self) -> int:
        """Return the number of a new channel."""
        ...

    def forget(self, channel: Any) -> None:
        """Drop a channel that was closed."""
        ...


@dataclass
class _Consumer:
    """A consumer of a channel."""

    tag: str
    queue: str
    callback: Callable[[Delivered], Any]
    no_ack: bool

    @property
    def accept(self) -> Collection[str] | None:
        """The content types that it takes, which kombu keeps beside the callback; ``None`` if it does not say."""
        return getattr(getattr(self.callback, "__self__", None), "accept", None)

    @property
    def place(self) -> str:
        """The module of the function that gets its messages, where kombu says it."""
        kombu_consumer = getattr(self.callback, "__self__", None)
        called = getattr(kombu_consumer, "on_message", None) or next(
            iter(getattr(kombu_consumer, "callbacks", ())), None
        )
        return str(getattr(getattr(called, "func", called), "__module__", ""))


@dataclass
class _Unacked:
    """A message that was delivered and not settled: of a queue in the stream, or of one in this process."""

    source: StreamMessage | LocalQueue
    envelope: Envelope
    error: BaseException | None = None  # for which it will be rejected

    def __str__(self) -> str:
        return repr(self.source.name if isinstance(self.source, LocalQueue) else self.source)


class QueueChannel(StdChannel):
    """A channel.

    Args:
        connection: what its transport has established.
    """

    Message = Delivered

    def __init__(self, connection: EstablishedConnection) -> None:
        self.connection: EstablishedConnection | None = connection
        self.closed = False
        self.no_ack_consumers: Any = set()
        self.events: dict[str, set[Any]] = defaultdict(set)
        self.channel_id = connection.next_channel_id()
        self._stream = connection.stream
        self._bindings = connection.stream.bindings
        self._inbox = connection.inbox
        self._consumers: dict[str, _Consumer] = {}
        self._unacked: dict[int, _Unacked] = {}
        self._delivery_tags = count(1)
        self._prefetch = 0
        self._lock = forks.Lock()
        self._pull: PullConsumer | None = None
        self._feeder: Feeder | None = None

    # -- exchanges -----------------------------------------------------------------------------------------------------

    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str = "direct",
        durable: bool = False,
        auto_delete: bool = False,
        arguments: Any = None,
        nowait: bool = False,
        passive: bool = False,
    ) -> None:
        """Create an exchange."""
        if not exchange:
            return
        if passive:
            if self._bindings.exchange(exchange) is None:
                raise NotFound(f"there is no exchange {exchange!r}", (40, 10), "Channel.exchange_declare")
            return
        check_names(exchange=exchange)
        if type not in list(ExchangeKind):
            raise ChannelError(
                f"exchange {exchange!r} has the type {type!r}; a stream has {', '.join(ExchangeKind)}", (40, 10)
            )
        found = self._bindings.declare_exchange(exchange, ExchangeKind(type))
        if found.kind != type:
            raise PreconditionFailed(
                f"exchange {exchange!r} has the type {str(found.kind)!r}, not {type!r}",
                (40, 10),
                "Channel.exchange_declare",
            )

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Delete an exchange and its bindings."""
        self._bindings.delete_exchange(exchange)

    def exchange_bind(
        self, destination: str, source: str = "", routing_key: str = "", nowait: bool = False, arguments: Any = None
    ) -> None:
        """Bind an exchange to an exchange."""
        check_names(exchange=source, bound_exchange=destination, routing_key=routing_key or "")
        self._bindings.bind(Binding(source, routing_key or "", TargetKind.EXCHANGE, destination))

    def exchange_unbind(
        self, destination: str, source: str = "", routing_key: str = "", nowait: bool = False, arguments: Any = None
    ) -> None:
        """Take a binding of two exchanges back."""
        self._bindings.unbind(Binding(source, routing_key or "", TargetKind.EXCHANGE, destination))

    # -- queues --------------------------------------------------------------------------------------------------------

    def prepare_queue_arguments(self, arguments: Any, **kwargs: Any) -> Any:
        """Return the arguments of a queue under their AMQP names."""
        return to_rabbitmq_queue_arguments(arguments, **kwargs)

    def queue_declare(
        self,
        queue: str = "",
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = True,
        nowait: bool = False,
        arguments: Any = None,
    ) -> queue_declare_ok_t:
        """Create a queue.

        One that is exclusive, or that is not durable, is deleted with its consumer and expires, lives in this process.
        """
        given = dict(arguments or {})
        queue = queue or f"amq.gen-{uuid.uuid4().hex}"
        local = self._stream.local.get(queue)
        if passive:
            return self._describe(queue, local)
        check_queue(queue, given)
        is_local = exclusive or (auto_delete and not durable and "x-expires" in given)
        if is_local and (local is not None or self._bindings.queue(queue) is None):
            expires_s, most = seconds_of(given, "x-expires"), number_of(given, "x-max-length")
            rank = partial(self._bindings.rank, self._bindings.levels(given))
            declared = self._stream.local.declare(queue, expires_s, most, rank)
            self._stream.local.bind(declared, self._bindings.bus_of(""), ExchangeKind.DIRECT, queue)
            return queue_declare_ok_t(queue, len(declared.waiting), 0)
        self._bindings.declare_queue(queue, given, auto_delete=auto_delete and not durable)
        return queue_declare_ok_t(queue, 0, 0) if nowait else self._describe(queue, None)

    def _describe(self, queue: str, local: LocalQueue | None) -> queue_declare_ok_t:
        if local is not None:
            return queue_declare_ok_t(queue, len(local.waiting), int(local.on_message is not None))
        return queue_declare_ok_t(queue, self._size(self._known(queue)), 0)

    def _known(self, name: str) -> Queue:
        queue = self._bindings.queue(name, fresh=True)
        if queue is None:
            raise NotFound(f"there is no queue {name!r}", (50, 10), "Channel.queue_declare")
        return queue

    def _size(self, queue: Queue) -> int:
        place = self._place(queue)
        return self._stream.broker.database.call(lambda session: backlog.count(session, place.group))

    def _place(self, queue: Queue) -> ReadGroup:
        def read(session: Any) -> ReadGroup | None:
            topic = topics.get_topic(session, queue.topic)
            group = topic and topics.get_group(session, topic, GROUP)
            return ReadGroup(topic, group, group.timeout_s) if topic and group else None

        found = self._stream.broker.database.call(read)
        if found is None:
            self._bindings.forget()
            raise NotFound(f"queue {queue.name!r} has been deleted", (50, 10), "Channel.queue_declare")
        return found

    def queue_bind(
        self, queue: str, exchange: str = "", routing_key: str = "", nowait: bool = False, arguments: Any = None
    ) -> None:
        """Bind a queue to an exchange."""
        if not exchange:
            return
        check_names(queue=queue, exchange=exchange, routing_key=routing_key or "")
        local = self._stream.local.get(queue)
        if local is None:
            self._bindings.bind(Binding(exchange, routing_key or "", TargetKind.QUEUE, queue))
            return
        bus = self._bindings.bus_of(exchange)
        found = self._bindings.exchange(exchange)
        self._stream.local.bind(local, bus, found.kind if found else ExchangeKind.DIRECT, routing_key or "")

    def queue_unbind(
        self, queue: str, exchange: str = "", routing_key: str = "", nowait: bool = False, arguments: Any = None
    ) -> None:
        """Take a binding of a queue back."""
        local = self._stream.local.get(queue)
        if local is None:
            self._bindings.unbind(Binding(exchange, routing_key or "", TargetKind.QUEUE, queue))
        else:
            self._stream.local.unbind(local, self._bindings.bus_of(exchange).id, routing_key or "")

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, nowait: bool = False) -> int:
        """Delete a queue and its messages; return how many it had."""
        if self._stream.local.get(queue) is not None:
            return self._stream.local.delete(queue)
        found = self._bindings.queue(queue, fresh=True)
        if found is None:
            return 0
        size = self._size(found)
        if if_empty and size:
            raise PreconditionFailed(f"queue {queue!r} is not empty", (50, 40), "Channel.queue_delete")
        for consumer in [one for one in self._consumers.values() if one.queue == queue]:
            self.basic_cancel(consumer.tag)
        self._bindings.delete_queue(queue)
        return size

    def queue_purge(self, queue: str, nowait: bool = False) -> int:
        """Delete the messages of a queue that nobody has in hand; return how many there were."""
        local = self._stream.local.get(queue)
        if local is not None:
            size = len(local.waiting)
            local.waiting.clear()
            return size
        place = self._place(self._known(queue))
        return self._stream.broker.database.call(lambda session: backlog.purge(session, place.group, "purged"))

    def list_bindings(self) -> list[tuple[str, str, str]]:
        """List the bindings of queues: queue, exchange, routing key."""
        found = self._bindings.list_bindings()
        return [(one.target, one.exchange, one.routing_key) for one in found if one.kind is TargetKind.QUEUE]

    # -- publishing ----------------------------------------------------------------------------------------------------

    def prepare_message(
        self,
        body: Any,
        priority: Any = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: dict[str, Any] | None = None,
        properties: dict[str, Any] | None = None,
    ) -> Published:
        """Return a message for :meth:`basic_publish`."""
        properties = dict(properties or {})
        if priority is not None:
            properties.setdefault("priority", priority)
        return {
            "body": body,
            "content-type": content_type,
            "content-encoding": content_encoding,
            "headers": headers or {},
            "properties": properties,
        }

    def basic_publish(
        self,
        message: Published,
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        immediate: bool = False,
        timeout: float | None = None,
        confirm_timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        """Publish a message: it is committed when this returns."""
        self._check_open()
        exchange, routing_key = exchange or "", routing_key or ""
        stored = Stored.of(message, exchange, routing_key, self._stream.budget)
        self._stream.revocations.note(message, exchange)
        deletions = 0
        while True:
            try:
                self._stream.sender.send(stored, exchange, routing_key)
                break
            except TopicDeleted:
                self._bindings.forget()
                deletions += 1
                if deletions == _DELETIONS:
                    raise
        if isinstance(reply_to := message["properties"].get("reply_to"), str):
            self._stream.local.expect(reply_to)

    # -- consuming -----------------------------------------------------------------------------------------------------

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Set the most messages in hand; 0 sets no limit."""
        self._prefetch = prefetch_count or _UNLIMITED
        if self._pull is not None:
            self._pull.prefetch = self._prefetch

    def basic_consume(
        self,
        queue: str,
        no_ack: bool = False,
        callback: Callable[[Delivered], Any] | None = None,
        consumer_tag: str = "",
        nowait: bool = False,
        arguments: Any = None,
        on_cancel: Any = None,
        **kwargs: Any,
    ) -> str:
        """Consume from a queue."""
        self._check_open()
        assert callback is not None, "kombu gives one"
        tag = consumer_tag or f"ctag-{uuid.uuid4().hex}"
        self._consumers[tag] = _Consumer(tag, queue, callback, bool(no_ack))
        if no_ack:
            self.no_ack_consumers.add(tag)
        local = self._stream.local.get(queue)
        if local is not None:
            local.on_message = partial(self._arrive_local, local, 1)
            self._arrive_local(local, len(local.waiting))
            return tag
        known = self._known(queue)
        self._feeding().add(known)
        return tag

    def basic_cancel(self, consumer_tag: str, nowait: bool = False) -> None:
        """End a consumer; what was not delivered goes back to its queue."""
        consumer = self._consumers.pop(consumer_tag, None)
        self.no_ack_consumers.discard(consumer_tag)
        if consumer is None or any(other.queue == consumer.queue for other in self._consumers.values()):
            return
        local = self._stream.local.get(consumer.queue)
        if local is not None:
            local.on_message = None
            return
        if self._feeder is not None:
            for queue in [one for one in self._feeder.queues.values() if one.name == consumer.queue]:
                self._feeder.remove(queue)
            self._inbox.withdraw(self, consumer.queue)

    def _feeding(self) -> Feeder:
        pull = self._pulling()
        if self._feeder is None:
            stream, waiting = self._stream, lambda: len(self._inbox)
            self._feeder = Feeder(
                *(pull, self._bindings, stream.local.catch_up, waiting, self._arrive, self._inbox.fail),
                stream.revocations.find,
            )
            self._feeder.start()
            self._stream.local.look_for(pull.poller)
            self._stream.maintain()
        return self._feeder

    def _pulling(self) -> PullConsumer:
        with self._lock:
            if self._pull is None:
                name = f"celery@{socket.gethostname()}"
                pull = PullConsumer(
                    self._stream.broker,
                    name,
                    prefetch=self._prefetch or _UNLIMITED,
                    asks=False,
                    broadcasts=self._stream.local.fanouts,
                )
                pull.claim_ahead(_AHEAD_S)
                self._pull = pull.open()  # not before: it may fail, and the next call opens another one
            return self._pull

    def _arrive(self, arrivals: list[Arrival]) -> None:
        self._inbox.put(map(self._delivery_of, arrivals))
        for queue in {one.queue for one in arrivals}:
            if self._consumer_of(queue) is None:  # it was cancelled meanwhile
                self._inbox.withdraw(self, queue)

    def _delivery_of(self, arrival: Arrival) -> Delivery:
        return Delivery(self, arrival.queue, lambda: self._prepare(arrival), partial(self._release, arrival.message))

    def _arrive_local(self, queue: LocalQueue, count: int) -> None:
        self._inbox.put(
            Delivery(self, queue.name, lambda: self._prepare_local(queue), lambda: None) for _ in range(count)
        )

    def _prepare(self, arrival: Arrival) -> Callable[[], object] | None:
        consumer = self._consumer_of(arrival.queue)
        if consumer is None or self.closed:
            self._release(arrival.message)
            return None
        if arrival.is_revoked:
            tell_worker(arrival.envelope.headers["id"])
        return self._giving(consumer, _Unacked(arrival.message, arrival.envelope), redelivered=arrival.redelivered)

    def _prepare_local(self, queue: LocalQueue) -> Callable[[], object] | None:
        consumer = self._consumer_of(queue.name)
        if consumer is None or self.closed or (taken := queue.take()) is None:
            return None
        envelope, redelivered = taken
        unacked = _Unacked(queue, envelope)
        try:
            return self._giving(consumer, unacked, redelivered=redelivered)
        except BaseException:
            self._put_back(unacked, redelivered=redelivered)
            raise

    def _consumer_of(self, queue: str) -> _Consumer | None:
        return next((one for one in list(self._consumers.values()) if one.queue == queue), None)

    def _giving(self, consumer: _Consumer, unacked: _Unacked, *, redelivered: bool) -> Callable[[], object] | None:
        message = self._to_message(unacked, consumer.tag, consumer.accept, redelivered=redelivered)
        if message is None:
            return None
        give: Callable[[], object] = partial(consumer.callback, message)
        if consumer.place.startswith(_WORKER):
            give = partial(self._call_worker, message, consumer)
        self._note_given(unacked, message.delivery_tag, no_ack=consumer.no_ack)
        return give

    def _note_given(self, unacked: _Unacked, delivery_tag: int, *, no_ack: bool) -> None:
        """Let the program settle a message, or do so for it; all before may be interrupted and done again."""
        if not no_ack:
            self._unacked[delivery_tag] = unacked
        elif isinstance(unacked.source, StreamMessage):
            with suppress(NotInHand):  # an interrupted call has done it
                self._consumer().ack(unacked.source)

    def _call_worker(self, message: Delivered, consumer: _Consumer) -> None:
        """Give a message to a worker of Celery; one by which its main process would end is refused.

        An exception may also come from outside, as timeout libraries raise it, and hit any message. So a message is
        delivered once more, unless it is certain that Celery has not written it.
        """
        message.accept = consumer.accept  # as kombu's consumer sets it
        assert self.connection is not None, "it delivers"
        client = self.connection.client
        try:
            if consumer.place == _TASKS:
                check_call(message)
            consumer.callback(message)
        except (MemoryError, *client.connection_errors, *client.channel_errors):
            raise
        except Exception as error:
            unacked = self._unacked.pop(message.delivery_tag, None)
            if unacked is None:  # an event or a command, of a consumer that acks nothing
                log.warning("a message of queue %r is passed over: %r", consumer.queue, error)
            elif isinstance(error, DecodeError) or message.delivery_info["redelivered"]:
                self._refuse(unacked, error)
            else:
                log.warning("%s is delivered once more: %r", unacked, error)
                with suppress(NotInHand):  # an interrupted call has done it
                    self._reject(replace(unacked, error=error), requeue=True)

    def _refuse(self, unacked: _Unacked, error: Exception) -> None:
        log.warning("%s is refused: %s", unacked, error)
        with suppress(NotInHand):  # an interrupted call has done it
            self._reject(replace(unacked, error=error), requeue=False)

    def _to_message(
        self, unacked: _Unacked, consumer_tag: str, accept: Collection[str] | None = None, *, redelivered: bool
    ) -> Delivered | None:
        """Return a message for a program; ``None`` if its body is over the budget, so that it was given up.

        It is unpacked no sooner, so that no more unpacked bodies are kept than the prefetch allows.
        """
        try:
            body = unacked.envelope.unpack(self._stream.budget, accept)
        except EmsError as error:
            self._refuse(unacked, error)
            return None
        delivery_tag = next(self._delivery_tags)
        return unacked.envelope.deliver(body, self, delivery_tag, consumer_tag, redelivered=redelivered)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Delivered | None:
        """Return the next message of a queue, or ``None``."""
        self._check_open()
        while (found := self._next(queue)) is not None:
            unacked, redelivered = found
            try:
                message = self._to_message(unacked, "", redelivered=redelivered)
                if message is not None:
                    self._note_given(unacked, message.delivery_tag, no_ack=no_ack)
                    return message
            except BaseException:
                self._put_back(unacked, redelivered=redelivered)
                raise
        return None

    def _put_back(self, unacked: _Unacked, *, redelivered: bool) -> None:
        if isinstance(unacked.source, LocalQueue):
            unacked.source.put_back(unacked.envelope, redelivered=redelivered)
        else:
            self._release(unacked.source)

    def _next(self, queue: str) -> tuple[_Unacked, bool] | None:
        local = self._stream.local.get(queue)
        if local is not None:
            taken = local.take()
            return None if taken is None else (_Unacked(local, taken[0]), taken[1])
        return self._get(self._known(queue))

    def _get(self, queue: Queue) -> tuple[_Unacked, bool] | None:
        pull = self._pulling()
        pull.flush()
        place = self._place(queue)
        reader = Feeder(pull, self._bindings, self._stream.local.catch_up, lambda: 0, lambda _: None, lambda _: None)
        reader.queues = {queue.topic: queue}
        while (message := pull.get(place)) is not None:
            try:
                reader.await_fanouts([message])
                for arrival in reader.sort_out([message]):
                    return _Unacked(arrival.message, arrival.envelope), arrival.redelivered
            except BaseException:
                self._release(message)
                raise
        return None

    # -- settling ------------------------------------------------------------------------------------------------------

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> None:
        """Count a message as done; nothing is sent by this thread."""
        for unacked in self._settled(delivery_tag, multiple):
            if isinstance(unacked.source, StreamMessage):
                self._consumer().ack(unacked.source)

    def basic_reject(self, delivery_tag: int, requeue: bool = False) -> None:
        """Return a message to its queue, or give it up."""
        for unacked in self._settled(delivery_tag, False):
            self._reject(unacked, requeue=requeue)

    def _reject(self, unacked: _Unacked, *, requeue: bool) -> None:
        if isinstance(unacked.source, LocalQueue):
            if requeue:
                unacked.source.put_back(unacked.envelope, redelivered=True)
            return
        error = unacked.error or sys.exc_info()[1]
        if requeue:
            self._consumer().nack(unacked.source, delay=0, error=error or Requeued(unacked.source.attempt))
        else:
            self._consumer().nack(unacked.source, dead=True, error=error or "rejected by its consumer")

    def note_error(self, delivery_tag: int, error: BaseException) -> None:
        """Note why a message will be rejected; by default it is the error that is being handled then."""
        if (unacked := self._unacked.get(delivery_tag)) is not None:
            unacked.error = error

    def basic_recover(self, requeue: bool = False) -> None:
        """Return all messages that were delivered and not settled to their queues."""
        for delivery_tag in sorted(self._unacked, reverse=True):
            self.basic_reject(delivery_tag, requeue=True)

    def _settled(self, delivery_tag: int, multiple: bool) -> list[_Unacked]:
        self._check_open()
        tags = [tag for tag in list(self._unacked) if tag <= delivery_tag] if multiple else [delivery_tag]
        return [found for tag in tags if (found := self._unacked.pop(tag, None)) is not None]

    def _consumer(self) -> PullConsumer:
        if self._pull is None:
            raise RecoverableConnectionError("the channel is closed")
        return self._pull

    def _release(self, message: StreamMessage) -> None:
        try:
            if self._pull is not None:
                self._pull.release(message)
        except EmsError as error:
            log.info("a message is given back by its lease: %s", error)

    def flow(self, active: bool = True) -> None:
        """Refuse: a consumer that wants no more is cancelled."""
        raise NotImplementedError("a stream has no flow control; set the prefetch, or cancel the consumer")

    # -- the end -------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.closed or self.connection is None:
            raise RecoverableConnectionError("the channel is closed")

    def close(self) -> None:
        """End all consumers, write down what was settled, and give everything else back."""
        if self.closed:
            return
        for tag in list(self._consumers):
            self.basic_cancel(tag)
        self.closed = True
        for delivery_tag in sorted(self._unacked, reverse=True):
            unacked = self._unacked.pop(delivery_tag)
            if isinstance(unacked.source, LocalQueue):
                unacked.source.put_back(unacked.envelope, redelivered=True)
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.forget(self)
        self.stop()

    def stop(self) -> None:
        """Send what was published, end the side threads, and give back what is in hand."""
        self._stream.sender.flush()
        feeder, self._feeder = self._feeder, None
        pull, self._pull = self._pull, None
        if feeder is not None:
            feeder.stop()
        if pull is None:
            return
        self._stream.local.forget(pull.poller)
        try:
            pull.close()
        except EmsError as error:
            log.warning("a channel has lost settlements: %s", error)
