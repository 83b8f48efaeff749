"""Queues that live in one process, such as those for replies, remote control and events.

They have no rows: every message to their exchange is stored once, in the broadcast topic of the exchange, and each
process with such queues reads it from the time of the binding on. One thread reads for all queues of a process, and by
the same statement it looks for new messages of the queues in the stream that the process consumes from.

A task that is revoked and then sent must not run. So a claim of tasks also reads the ends of the fanout exchanges that
remote control uses, and its tasks are handed over once this thread has handed over all that is below those ends.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from emsworker.extending.apps import MysqlBroker
from emsworker.extending.consuming import Listener, Poller
from emsworker.extending.errors import is_known
from emsworker.extending.processes import PollInterval, Runnable, forks, ticks
from emsworker.extending.stream import broadcast, close_hole_at, find_new
from emsworker.extending.values import EVERYTHING, MAX_KEY_BYTES, Filter, Message, Topic
from emsworker.integrations.celery.bindings import matches
from emsworker.integrations.celery.messages import Envelope
from emsworker.integrations.celery.names import HEARTBEAT
from emsworker.integrations.celery.store.routing import ExchangeKind

log = logging.getLogger(__name__)

_SHORTEST_S, _LONGEST_S = 0.005, 0.35  # Celery's remote control waits a second for its answers
_REPLY_S = 0.001  # the shortest pause while a reply is expected: a caller does nothing else
_LATEST_S = 0.02  # after which a look is not put off any longer
_REST = 2  # the least ratio of a pause to the time that a look takes: many workers leave a busy server alone
_OTHER_S = 0.1  # between looks that are for all that idle consumers could do
_BATCH, _BATCH_BYTES, _FEW = 500, 4 << 20, 64
_SWEEP_S, _LAST_S = 5.0, 5.0
_MOST_OF_TAGS = 3000  # characters that the server compares


@dataclass
class _Way:
    """A binding: the routing keys that it takes, and the first offset that it takes from."""

    topic_id: int
    kind: ExchangeKind
    pattern: str
    first: int


@dataclass(eq=False)
class LocalQueue:
    """A queue of this process.

    Attributes:
        expires_s: seconds without use after which it is deleted, or ``None``.
        most: the most messages that it keeps, or ``None``; the oldest go first.
        rank: returns the rank of a priority; a higher one is delivered first.
        on_message: told of new messages, while something consumes from it.
    """

    name: str
    expires_s: float | None = None
    most: int | None = None
    rank: Callable[[int], int] = lambda priority: 0
    ways: list[_Way] = field(default_factory=list)
    waiting: deque[tuple[Envelope, bool, float]] = field(default_factory=deque)  # with redelivered, and its end
    on_message: Callable[[], None] | None = None
    used_at: float = field(default_factory=ticks)

    def put(self, envelope: Envelope, ttl_s: float | None) -> None:
        """Add a message, unless it has expired."""
        if ttl_s is None or ttl_s > 0:
            rank, place = self.rank(envelope.priority), len(self.waiting)
            while place > 0 and self.rank(self.waiting[place - 1][0].priority) < rank:
                place -= 1
            self.waiting.insert(place, (envelope, False, math.inf if ttl_s is None else ticks() + ttl_s))
            while self.most is not None and len(self.waiting) > self.most:
                self.waiting.popleft()
            if self.on_message is not None:
                self.on_message()

    def put_back(self, envelope: Envelope, *, redelivered: bool) -> None:
        """Return a message to the head of the queue, or of its rank."""
        rank, place = self.rank(envelope.priority), 0
        while place < len(self.waiting) and self.rank(self.waiting[place][0].priority) > rank:
            place += 1
        self.waiting.insert(place, (envelope, redelivered, math.inf))
        if self.on_message is not None:
            self.on_message()

    def take(self) -> tuple[Envelope, bool] | None:
        """Return the next message, and whether it was delivered before; ``None`` if there is none."""
        self.used_at = ticks()
        while self.waiting:
            try:
                envelope, redelivered, until = self.waiting.popleft()
            except IndexError:
                return None
            if ticks() < until:
                return envelope, redelivered
        return None


class LocalQueues:
    """The queues of this process, by name; thread-safe. A forked child has none."""

    def __init__(self, broker: MysqlBroker) -> None:
        self._broker = broker
        self._lock = forks.Lock()
        self._queues: dict[str, LocalQueue] = {}
        self._reader: _BusReader | None = None
        self._pollers: list[Poller] = []

    def look_for(self, poller: Poller) -> None:
        """Look for the new messages of a consumer, too, so that one statement serves all queues of this process."""
        with self._lock:
            self._pollers = [*self._pollers, poller]
            self._reading()
        poller.relieve(self._look_soon)

    def forget(self, poller: Poller) -> None:
        """Look for a consumer's messages no longer."""
        with self._lock:
            self._pollers = [one for one in self._pollers if one is not poller]
        self._rest()

    def expect(self, name: str) -> None:
        """Look often until something comes, if a queue of that name is here: a request that names it was sent."""
        if name in self._queues and (reader := self._reader) is not None:
            reader.expect()

    def fanouts(self) -> set[int]:
        """Return the broadcast topics of the fanout exchanges from which this process gets something."""
        ways = [way for queue in self._snapshot() for way in list(queue.ways)]
        return {way.topic_id for way in ways if way.kind is ExchangeKind.FANOUT}

    def catch_up(self, ends: Mapping[tuple[int, int], int], seconds: float) -> bool:
        """Return whether all below these ends has been handed over; wait for it at most ``seconds``."""
        reader = self._reader
        return reader is None or reader.catch_up(ends, seconds)

    def _look_soon(self) -> None:
        if (reader := self._reader) is not None:
            reader.look_soon()

    def _watching(self) -> list[Poller]:
        return self._pollers

    def _reading(self) -> _BusReader:
        if self._reader is None or not self._reader.is_alive():
            self._reader = _BusReader(self._broker, self._snapshot, self._watching, self._sweep)
            self._reader.start()
            self._broker.wakes.append(self._reader.wake)
        return self._reader

    def declare(self, name: str, expires_s: float | None, most: int | None, rank: Callable[[int], int]) -> LocalQueue:
        """Create a queue, or return the existing one."""
        with self._lock:
            queue = self._queues.setdefault(name, LocalQueue(name))
            queue.expires_s, queue.most, queue.rank, queue.used_at = expires_s, most, rank, ticks()
            return queue

    def get(self, name: str) -> LocalQueue | None:
        """Return the queue of that name, or ``None``."""
        return self._queues.get(name)

    def bind(self, queue: LocalQueue, topic: Topic, kind: ExchangeKind, pattern: str) -> None:
        """Read what is sent to a broadcast topic from now on."""
        with self._lock:
            if any(way.topic_id == topic.id and way.pattern == pattern for way in queue.ways):
                if self._reader is not None:
                    self._reader.hurry()
                return
            reader = self._reading()
        reader.bind(queue, topic, kind, pattern)

    def unbind(self, queue: LocalQueue, topic_id: int, pattern: str) -> None:
        """Take a binding back."""
        queue.ways = [way for way in queue.ways if (way.topic_id, way.pattern) != (topic_id, pattern)]

    def delete(self, name: str) -> int:
        """Delete a queue; return how many messages it had."""
        with self._lock:
            queue = self._queues.pop(name, None)
        self._rest()
        return 0 if queue is None else len(queue.waiting)

    def _rest(self) -> None:
        """End the thread if it has nothing to look for: a program that only sends keeps its connection for long."""
        with self._lock:
            if self._queues or self._pollers:
                return
            reader, self._reader = self._reader, None
        if reader is not None:
            self._broker.wakes.remove(reader.wake)
            reader.stop()

    def _snapshot(self) -> list[LocalQueue]:
        with self._lock:
            return list(self._queues.values())

    def _sweep(self) -> None:
        now = ticks()
        for queue in self._snapshot():
            if queue.on_message is None and queue.expires_s is not None and now > queue.used_at + queue.expires_s:
                self.delete(queue.name)

    def close(self) -> None:
        """End the thread, and drop all queues."""
        with self._lock:
            reader = self._reader
            self._queues.clear()
            self._pollers = []
        self._rest()
        if reader is not None:
            reader.join(_LAST_S)


class _BusReader(Runnable):
    """The thread that reads the broadcast topics of this process's queues, and looks for messages of its consumers.

    Args:
        queues: returns the queues of this process.
        pollers: returns those of its consumers.
        sweep: called every few seconds.
    """

    action = "read exchanges"
    outlasts = (Exception,)  # this thread delivers remote control and events

    def __init__(
        self,
        broker: MysqlBroker,
        queues: Callable[[], list[LocalQueue]],
        pollers: Callable[[], list[Poller]],
        sweep: Callable[[], None],
    ) -> None:
        super().__init__("ems-celery-fanout", lambda name, error: None)
        self._broker, self._queues, self._pollers, self._sweep = broker, queues, pollers, sweep
        self._session = broker.database.session()
        self._topics: dict[int, Topic] = {}
        self._next: dict[int, int] = {}  # by topic
        self._came = False  # something that may be followed by more
        self._other_at = 0.0
        self._lock = forks.Lock()
        self._looked = forks.Condition()
        self._woken = forks.Event()
        self._hurried, self._looked_at, self._cost_s = False, ticks(), 0.0
        self._interval = PollInterval(_SHORTEST_S, _LONGEST_S)
        self._reply_interval = PollInterval(_REPLY_S, _LONGEST_S)  # since the last request
        self._expects_reply = False
        self._swept_at = ticks()
        self._listener: Listener | None = None
        if broker.redis_url is not None:
            self._listener = Listener(broker.redis_url, broker.stream_id, [], self.wake, lambda name, error: None)
            self._listener.start()
        self.polls = 0

    def bind(self, queue: LocalQueue, topic: Topic, kind: ExchangeKind, pattern: str) -> None:
        """Read a topic for a queue, from now on."""
        ends = self._broker.database.call(lambda session: broadcast.find_ends(session, [topic.id]))
        first = ends[topic.id, 0].end
        if self._listener is not None:
            self._listener.listen_to(topic.id)
        with self._lock:  # a read that has begun does not ask the server for this routing key
            queue.ways.append(_Way(topic.id, kind, pattern, first))
            self._topics[topic.id] = topic
            self._next.setdefault(topic.id, first)
        self.hurry()

    def hurry(self) -> None:
        """Look often for a while: a program that declares a queue, also again, expects something."""
        self._interval.note()
        self._look_now()

    def expect(self) -> None:
        """Look often until something comes; the longer that takes, the less often."""
        self._reply_interval.note()
        self._expects_reply = True
        self._woken.set()  # it may be in the middle of a long pause

    def catch_up(self, ends: Mapping[tuple[int, int], int], seconds: float) -> bool:
        """Look at once if anything below these ends was not delivered, and wait; see :meth:`LocalQueues.catch_up`."""
        if self._is_beyond(ends):
            return True
        self._look_now()
        with self._looked:
            return self._looked.wait_for(lambda: self._is_beyond(ends) or not self.is_alive(), seconds)

    def _is_beyond(self, ends: Mapping[tuple[int, int], int]) -> bool:
        """Return whether each topic was read to its end, or is not wanted any longer."""
        return all(self._next.get(topic_id, end) >= end for (topic_id, _), end in ends.items())

    def look_soon(self) -> None:
        """Count the pause anew: a consumer becomes idle that has just had work.

        It is not over at once, because a look would take time from what that consumer has just delivered.
        """
        self._woken.set()

    def wake(self, topic_id: int, partitions: Collection[int]) -> None:
        """Look at once, if something was sent to one of the topics."""
        if topic_id in self._topics:
            self._look_now()

    def _look_now(self) -> None:
        self._hurried = True
        self._woken.set()

    def step(self) -> None:
        """Wait until the next look is due, and look."""
        now = ticks()
        reply_s = self._reply_interval.pause_s(now) if self._expects_reply else math.inf
        pause_s = min([self._interval.pause_s(now), reply_s, *(one.wanted()[1] for one in self._pollers())])
        self._woken.wait(max(pause_s, _REST * self._cost_s))
        is_due = not self._woken.is_set() or self._hurried or ticks() > self._looked_at + _LATEST_S
        self._woken.clear()
        if self.stopping.is_set() or not is_due:
            return
        self._hurried, self._looked_at = False, ticks()
        self.polls += 1
        self._cost_s = 0.0
        while self._look() and not self.stopping.is_set():
            pass
        self._cost_s = ticks() - self._looked_at
        if ticks() > self._swept_at + _SWEEP_S:
            self._swept_at = ticks()
            self._sweep()

    def on_trouble(self, error: Exception) -> None:
        """Go on, after a pause."""
        if not is_known(error):
            self._session.drop()  # it may have cut a packet in two
        super().on_trouble(error)

    def _look(self) -> bool:
        """Read one batch of each topic that has something; return whether there may be more."""
        self._came = False
        also_other = ticks() >= self._other_at
        with self._lock:
            bound = {way.topic_id for queue in self._queues() for way in queue.ways}
            for topic_id in self._topics.keys() - bound:
                del self._topics[topic_id], self._next[topic_id]
            wanted = {group_id for poller in self._pollers() for group_id in poller.wanted()[0]}
            news = find_new(self._session, wanted, self._topics, also_other=also_other)
            behind = {topic_id: end for (topic_id, _), end in news.ends.items() if end > self._next[topic_id]}
        if also_other:
            self._other_at = ticks() + _OTHER_S
        has_more = [self._read_of(topic_id, end) for topic_id, end in behind.items()]  # first: claims wait for it
        with self._looked:
            self._looked.notify_all()
        for poller in self._pollers():
            for topic_id, partitions in news.partitions.items():
                poller.note_found(topic_id, partitions)
            for topic_id in news.others:
                poller.notify(topic_id, ())
        return self._came or any(has_more)

    def _read_of(self, topic_id: int, end: int) -> bool:
        """Read one batch of what is below an end; return whether there is more of it."""
        with self._lock:
            topic = self._topics.get(topic_id)
            if topic is None:
                return False
            queues = self._queues()
            return not self._read_few(topic, end, queues) and self._read(topic, queues) and self._next[topic_id] < end

    def _read_few(self, topic: Topic, end: int, queues: list[LocalQueue]) -> bool:
        """Read up to an end by one statement, as heartbeats are as a rule; return whether that was possible."""
        offsets = range(self._next[topic.id], end)
        if not 0 < len(offsets) <= _FEW or _filter_of(topic.id, queues) is not EVERYTHING:
            return False
        rows = broadcast.read_few(self._session, topic, 0, offsets, _BATCH_BYTES)
        for row in rows or ():
            self._deliver(topic, Message(topic.name, 0, row, self._broker.decoder), queues)
        if rows is not None:
            self._next[topic.id] = end
        return rows is not None

    def _read(self, topic: Topic, queues: list[LocalQueue]) -> bool:
        """Read one batch; return whether this got any further."""
        first = self._next[topic.id]
        wanted = _filter_of(topic.id, queues)
        batch = broadcast.read(self._session, topic, 0, first, _BATCH, _BATCH_BYTES, wanted)
        if batch.hi is None:
            if batch.log_start > first:  # retention was faster
                self._next[topic.id] = min(batch.log_start, batch.first or batch.log_start)
                return True
            gap_s = self._broker.settings.gap_timeout_s
            return close_hole_at(self._session, topic.id, 0, first, gap_s)
        for row in batch.rows:
            self._deliver(topic, Message(topic.name, 0, row, self._broker.decoder), queues)
        self._next[topic.id] = batch.hi + 1
        return True

    def _deliver(self, topic: Topic, message: Message, queues: list[LocalQueue]) -> None:
        try:
            envelope = Envelope.open(message)
        except Exception:  # somebody else has written to this topic; it must not end the thread
            log.warning("%r is no message of kombu, and is passed over", message, exc_info=True)
            return
        for queue in queues:
            if any(
                way.topic_id == topic.id
                and message.offset >= way.first
                and matches(way.kind, way.pattern, envelope.routing_key)
                for way in list(queue.ways)
            ):
                queue.put(envelope, envelope.expires_s)
                if envelope.routing_key != HEARTBEAT:
                    self._came, self._expects_reply = True, False
                    self._interval.note()

    def stop(self) -> None:
        """Ask the thread to end."""
        super().stop()
        self._woken.set()
        if self._listener is not None:
            self._listener.stop()

    def shut_down(self) -> None:
        """Close the session."""
        self._session.close()


def _filter_of(topic_id: int, queues: list[LocalQueue]) -> Filter:
    """Return the filter that the server applies: routing keys, if all bindings name one."""
    ways = [way for queue in queues for way in list(queue.ways) if way.topic_id == topic_id]
    tags = sorted({way.pattern for way in ways})
    is_long = sum(map(len, tags)) > _MOST_OF_TAGS or any(len(tag.encode()) > MAX_KEY_BYTES for tag in tags)
    if is_long or not all(tags) or any(way.kind is not ExchangeKind.DIRECT for way in ways):
        return EVERYTHING
    return Filter(tags=tags)
