"""Exchanges, queues and bindings of a stream, remembered for a while, and the way of a message through them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Generic, TypeVar

from emsworker.extending.apps import MysqlBroker
from emsworker.extending.database import Session, server_facts
from emsworker.extending.processes import forks, ticks
from emsworker.extending.stream import SkipPolicy, fitting_body, skipping, topics
from emsworker.extending.values import UNLIMITED_S, Topic, TopicKind, levels_of
from emsworker.integrations.celery.arguments import number_of, seconds_of
from emsworker.integrations.celery.names import GROUP, HEARTBEAT, bus_topic, queue_topic
from emsworker.integrations.celery.options import StreamOptions
from emsworker.integrations.celery.store import routing
from emsworker.integrations.celery.store.routing import Binding, Exchange, ExchangeKind, Queue, TargetKind

log = logging.getLogger(__name__)

T = TypeVar("T")

_FRESH_S = 1.0
_PROVEN_S = 60.0  # for a send that fails if it exists no longer
_HEARTBEAT_S = 5.0  # the next heartbeat says the same
_AUTO_DELETE_S = 300.0  # a queue that is deleted with its last consumer is deleted that long after its last use


class _Memory(Generic[T]):
    """Values by name, read again after a while."""

    def __init__(self, read: Callable[[str], T]) -> None:
        self._read = read
        self._kept: dict[str, tuple[T, float]] = {}

    def get(self, name: str, *, fresh: bool = False, lasts_s: float = _FRESH_S) -> T:
        """Return a value, remembered unless it must be ``fresh``.

        Args:
            lasts_s: seconds for which it may be remembered; that there is none is remembered for a second.
        """
        known = self._kept.get(name)
        if known is not None and not fresh and ticks() < known[1] + (_FRESH_S if known[0] is None else lasts_s):
            return known[0]
        value = self._read(name)
        self._kept[name] = (value, ticks())
        return value

    def forget(self, name: str) -> None:
        """Read a value again at its next use."""
        self._kept.pop(name, None)

    def clear(self) -> None:
        """Read every value again."""
        self._kept.clear()


@dataclass
class Destinations:
    """Destinations of a message: queues, and exchanges whose broadcast topic gets a copy."""

    queues: dict[str, Queue] = field(default_factory=dict)
    buses: dict[str, str] = field(default_factory=dict)  # exchange -> topic

    def __len__(self) -> int:
        return len(self.queues) + len(self.buses)


class Bindings:
    """The exchanges, queues and bindings of a stream; thread-safe.

    A change made by another process is seen within a second, and at once where a message would go nowhere. For a send
    that is confirmed, that a queue has been deleted is seen by the send itself, which fails, and its settings within a
    minute: so the way of a message to a queue by its name is not looked up again after each quiet second.
    """

    def __init__(self, broker: MysqlBroker, options: StreamOptions) -> None:
        self._broker, self._options = broker, options
        self._ways = _Memory[tuple[Exchange, list[Binding]] | None](
            lambda name: self._call(lambda s: routing.find_ways(s, name))
        )
        self._queues = _Memory[Queue | None](lambda name: self._call(lambda s: routing.get_queue(s, name)))
        self._topics = _Memory[Topic | None](lambda name: self._call(lambda s: topics.get_topic(s, name)))
        self._lock = forks.Lock()

    def _call(self, work: Callable[[Session], T]) -> T:
        return self._broker.database.call(work)

    # -- exchanges -----------------------------------------------------------------------------------------------------

    def declare_exchange(self, name: str, kind: ExchangeKind) -> Exchange:
        """Create an exchange, or return the existing one."""
        exchange = self._call(lambda s: routing.declare_exchange(s, name, kind))
        self._ways.forget(name)
        return exchange

    def exchange(self, name: str, *, fresh: bool = False) -> Exchange | None:
        """Return the exchange of that name, or ``None``."""
        found = self._ways.get(name, fresh=fresh)
        return None if found is None else found[0]

    def delete_exchange(self, name: str) -> None:
        """Delete an exchange, its bindings, and its broadcast topic."""
        exchange = self.exchange(name, fresh=True)
        self._call(lambda s: routing.delete_exchange(s, name))
        if exchange is not None and exchange.bus is not None:
            self._delete_topic(exchange.bus)
        self.forget()

    def bus_of(self, name: str) -> Topic:
        """Return the broadcast topic of an exchange, created if it has none."""
        exchange = self.exchange(name, fresh=True) or self.declare_exchange(name, ExchangeKind.DIRECT)
        bus = exchange.bus or bus_topic(name)
        topic = self._call(lambda s: topics.get_topic(s, bus) or self._create_bus(s, bus))
        if exchange.bus is None:
            self._call(lambda s: routing.set_bus(s, name, bus))
            self._ways.forget(name)
        return topic

    def _create_bus(self, session: Session, name: str) -> Topic:
        ttl_s, most = self._options.event_ttl_s, self._most_bytes(session)
        return topics.create_topic(session, name, kind=TopicKind.BROADCAST, max_message_bytes=most, retention_s=ttl_s)

    def _most_bytes(self, session: Session) -> int:
        """Return the limit of new topics: the option's, or that of the server if it is less."""
        return min(self._options.max_message_bytes, fitting_body(server_facts(session).max_allowed_packet))

    # -- queues --------------------------------------------------------------------------------------------------------

    def queue(self, name: str, *, fresh: bool = False) -> Queue | None:
        """Return the queue of that name, or ``None``."""
        return self._queues.get(name, fresh=fresh)

    def declare_queue(self, name: str, arguments: dict[str, Any], *, auto_delete: bool) -> Queue:
        """Create a queue with its topic and group; the existing one takes the settings that are given."""
        expires_s = seconds_of(arguments, "x-expires")
        queue = Queue(
            name,
            queue_topic(name),
            seconds_of(arguments, "x-message-ttl"),
            _AUTO_DELETE_S if auto_delete and expires_s is None else expires_s,
        )
        self._call(lambda s: self._create(s, queue, arguments))
        self._call(lambda s: routing.declare_queue(s, queue))
        self._queues.forget(name)
        self._topics.forget(queue.topic)
        return queue

    def _create(self, session: Session, queue: Queue, arguments: dict[str, Any]) -> None:
        wanted = self.levels(arguments)
        topic = topics.get_topic(session, queue.topic)
        if topic is None:
            most = self._most_bytes(session)
            topic = topics.create_topic(session, queue.topic, max_message_bytes=most, keep_done_s=0, priorities=wanted)
        if topic.priorities < wanted:
            topics.change_topic(session, replace(topic, priorities=wanted))
        limit = number_of(arguments, "x-delivery-limit") or 0
        group = topics.get_group(session, topic, GROUP)
        if group is None:
            limits: dict[str, Any] = {"timeout_s": UNLIMITED_S, "ladder": "0s"}
            limits["max_attempts"] = limit or self._options.delivery_limit
            group = topics.create_group(session, topic, GROUP, **limits)
        elif limit and group.max_attempts != limit:
            topics.change_group(session, replace(group, max_attempts=limit))
        if (most_waiting := number_of(arguments, "x-max-length")) is not None:
            skipping.set_policy(session, group, SkipPolicy(most_waiting=most_waiting))

    def delete_queue(self, name: str) -> None:
        """Delete a queue, its bindings, and its topic with all messages."""
        queue = self._queues.get(name, fresh=True)
        self._call(lambda s: routing.delete_queue(s, name))
        if queue is not None:
            self._delete_topic(queue.topic)
        self.forget()

    def use(self, names: list[str]) -> None:
        """Note that queues are in use, so that they do not expire."""
        self._call(lambda s: routing.use_queues(s, names))

    def delete_unused(self) -> None:
        """Delete the queues that have expired, those of other programs too; of several callers, one deletes each."""
        for queue in self._call(routing.list_unused):
            if self._call(partial(routing.delete_queue, name=queue.name, unused=True)):
                log.info("queue %s was not used for %g s, and is deleted", queue.name, queue.expires_s)
                self._delete_topic(queue.topic)
                self._queues.forget(queue.name)

    def _delete_topic(self, name: str) -> None:
        self._call(lambda s: _delete_topic(s, name))
        self._broker.catalog.forget(name)

    def topic_of(self, queue: Queue, *, proven: bool = False) -> Topic | None:
        """Return the topic of a queue; ``None`` if the queue is being deleted."""
        return self._topics.get(queue.topic, lasts_s=_lasts_s(proven)) or self._topics.get(queue.topic, fresh=True)

    def topic(self, name: str, *, proven: bool = False) -> Topic | None:
        """Return the topic of that name, or ``None``."""
        return self._topics.get(name, lasts_s=_lasts_s(proven))

    def levels(self, arguments: Mapping[str, Any]) -> int:
        """Return the number of priorities of a queue, by its arguments."""
        most = number_of(arguments, "x-max-priority")
        if most is None:
            return 1 if self._options.priority_order == "high" else 10
        return min(most + 1, 10)

    def rank(self, levels: int, priority: int) -> int:
        """Return the rank of a priority, the highest first: a queue of n levels tells 0 to n - 1 apart."""
        place = min(priority, levels - 1)
        return place if self._options.priority_order == "high" else levels - 1 - place

    def level_of(self, topic: Topic, priority: int) -> int:
        """Return the level of a priority in the topic of a queue."""
        return levels_of(topic.priorities)[self.rank(topic.priorities, priority)]

    # -- bindings ------------------------------------------------------------------------------------------------------

    def bind(self, binding: Binding) -> None:
        """Add a binding."""
        self._call(lambda s: routing.bind(s, binding))
        self._ways.forget(binding.exchange)

    def unbind(self, binding: Binding) -> None:
        """Delete a binding."""
        self._call(lambda s: routing.unbind(s, binding))
        self._ways.forget(binding.exchange)

    def list_bindings(self) -> list[Binding]:
        """List the bindings of all exchanges."""
        return self._call(routing.list_bindings)

    def forget(self) -> None:
        """Read everything again."""
        for memory in (self._ways, self._queues, self._topics):
            memory.clear()

    def route(self, exchange: str, routing_key: str, *, proven: bool = False) -> Destinations:
        """Return where a message goes.

        Args:
            proven: the send will fail with ``TopicDeleted`` where a queue has been deleted.
        """
        route = self._route(exchange, routing_key, proven)
        if not route:
            self.forget()
            route = self._route(exchange, routing_key, proven)
        return route

    def _route(self, exchange: str, routing_key: str, proven: bool) -> Destinations:
        if not exchange:
            return self._route_by_name(routing_key, proven)
        route, todo, seen = Destinations(), [exchange], {exchange}
        lasts_s = _HEARTBEAT_S if routing_key == HEARTBEAT else _FRESH_S
        while todo:
            ways = self._ways.get(todo.pop(), lasts_s=lasts_s)
            if ways is None:
                continue
            found, bindings = ways
            if found.bus is not None:
                route.buses[found.name] = found.bus
            for one in bindings:
                if not matches(found.kind, one.routing_key, routing_key):
                    continue
                if one.kind is TargetKind.EXCHANGE and one.target not in seen:
                    seen.add(one.target)
                    todo.append(one.target)
                elif one.kind is TargetKind.QUEUE and (queue := self._queues.get(one.target)) is not None:
                    route.queues[queue.name] = queue
        return route

    def _route_by_name(self, name: str, proven: bool) -> Destinations:
        """Destinations by the default exchange: to the queue of that name, which may live in some process."""
        queue = self._queues.get(name, lasts_s=_lasts_s(proven))
        if queue is not None:
            return Destinations({name: queue})
        default = self.exchange("")
        return (
            Destinations(buses={"": default.bus}) if default is not None and default.bus is not None else Destinations()
        )


def _lasts_s(proven: bool) -> float:
    return _PROVEN_S if proven else _FRESH_S


def matches(kind: ExchangeKind, pattern: str, routing_key: str) -> bool:
    """Return whether a binding's key takes a routing key: ``*`` stands for one word, ``#`` for any number of them."""
    if kind is ExchangeKind.FANOUT:
        return True
    if kind is ExchangeKind.DIRECT:
        return pattern == routing_key
    return _takes(pattern, routing_key)


@lru_cache(maxsize=4096)
def _takes(pattern: str, routing_key: str) -> bool:
    """Return whether a pattern takes a routing key.

    It follows all places of the pattern that the words so far may lead to, at once: a regular expression would try the
    ways of several ``#`` one after the other, and never end.
    """
    words = _words(pattern)
    wanted = [word for number, word in enumerate(words) if words[number - 1 : number + 1] != ["#", "#"]]
    places = _beyond(wanted, {0})
    for word in _words(routing_key):
        met = {place for place in places if place < len(wanted) and _meets(wanted[place], word)}
        places = _beyond(wanted, {place + (wanted[place] != "#") for place in met})
    return len(wanted) in places


def _words(text: str) -> list[str]:
    return text.split(".") if text else []


def _meets(wanted: str, word: str) -> bool:
    return wanted == "#" or wanted == word or (wanted == "*" and word != "")


def _beyond(wanted: list[str], places: set[int]) -> set[int]:
    """Add the places behind each ``#``, which need not take a word."""
    return places | {place + 1 for place in places if place < len(wanted) and wanted[place] == "#"}


def _delete_topic(session: Session, name: str) -> None:
    topic = topics.get_topic(session, name)
    if topic is not None:
        topics.delete_topic(session, topic, force=True)
