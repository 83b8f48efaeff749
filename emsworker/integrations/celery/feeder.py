"""The thread that claims messages of a channel's queues and hands them to the connection's thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from emsworker.extending.consuming import PullConsumer, PulledRun
from emsworker.extending.errors import DecodeError, EmsError, LeaseLost, StoreUnavailable
from emsworker.extending.processes import Runnable, Trouble, forks, ticks
from emsworker.extending.values import Message as StreamMessage
from emsworker.extending.values import level_of
from emsworker.integrations.celery.bindings import Bindings
from emsworker.integrations.celery.messages import Envelope
from emsworker.integrations.celery.names import GROUP
from emsworker.integrations.celery.store.routing import Queue

log = logging.getLogger(__name__)

_WAIT_S = 0.5
_MOST = 1000  # messages that wait for the connection's thread
_FULL_S = 0.05
_BEHIND_S, _SLICE_S = 5.0, 0.1
_SWEEP_S = 10.0


@dataclass(frozen=True)
class Arrival:
    """A message that was claimed for a channel."""

    queue: str
    message: StreamMessage
    envelope: Envelope
    is_revoked: bool = False

    @property
    def redelivered(self) -> bool:
        """True if it was delivered before, as far as is known."""
        return self.message.attempt > 1


class Feeder(Runnable):
    """Claims what is ready, all levels of all queues together, the highest first.

    Of a single queue with a single level it hands over what came first, without looking for more.

    Args:
        pull: the channel's consumer.
        bindings: its queues.
        catch_up: waits, at most some seconds, for what was sent before claims; see :meth:`LocalQueues.catch_up`.
        waiting: returns how many messages wait for the connection's thread.
        arrive: called with all that was ready.
        on_loss: called with an error if what is in hand was given to others.
        find_revoked: returns the ids of those tasks that were revoked.
    """

    def __init__(
        self,
        pull: PullConsumer,
        bindings: Bindings,
        catch_up: Callable[[Mapping[tuple[int, int], int], float], bool],
        waiting: Callable[[], int],
        arrive: Callable[[list[Arrival]], None],
        on_loss: Callable[[Exception], None],
        find_revoked: Callable[[Collection[Envelope]], set[str]] = lambda envelopes: set(),
    ) -> None:
        super().__init__("ems-celery-feeder", lambda name, error: on_loss(LeaseLost(f"thread {name} died: {error!r}")))
        self._pull, self._bindings, self._catch_up, self._waiting = pull, bindings, catch_up, waiting
        self._arrive, self._on_loss, self._find_revoked = arrive, on_loss, find_revoked
        self.queues: dict[str, Queue] = {}  # by topic
        self._has_ranks = False  # a message of a higher level may wait behind those that were fetched first
        self._touch_at = 0.0
        self._changed = forks.Event()
        self._trouble = Trouble(log)

    def step(self) -> None:
        """Claim what is ready, and hand it over."""
        self._touch()
        if not self.queues:
            self._changed.wait(_WAIT_S)
            self._changed.clear()
            return
        if self._waiting() >= _MOST:
            self.sleep(_FULL_S)
            return
        if messages := self._fetch():
            messages.sort(key=lambda one: (-level_of(one.partition), one.offset))
            self.await_fanouts(messages)
            if not self.stopping.is_set():  # or else the consumer is closed, and gives them back
                self._arrive(self._mark_revoked(self.sort_out(messages)))
        if self._pull.losses and not self.stopping.is_set():
            self._on_loss(LeaseLost("the lease ran out; what was in hand is delivered to others"))
            self.stop()

    def _fetch(self) -> list[StreamMessage]:
        """Return what is ready, also what came before the stream was away."""
        messages: list[StreamMessage] = []
        try:
            messages += self._pull.fetch(_MOST, _WAIT_S)
            while messages and self._has_ranks and len(messages) < _MOST:
                if not (more := self._pull.fetch(_MOST - len(messages), 0)):
                    break
                messages += more
            self._trouble.over("the stream is there")
        except StoreUnavailable as error:
            self._trouble.note("waiting for the stream", error)
            self.sleep(_WAIT_S)
        except EmsError as error:
            if not self.stopping.is_set():
                self._on_loss(error)
                self.stop()
            return []
        return messages

    def await_fanouts(self, messages: Collection[StreamMessage]) -> None:
        """Wait until all that was sent to a fanout exchange before these messages has been handed over.

        It gives up after some seconds: a hole in the exchange's topic is closed by then.
        """
        until = ticks() + _BEHIND_S
        for pulled in {_run_of(message).pulled for message in messages}:
            while not self._catch_up(pulled.claim.ends, _SLICE_S) and not self.stopping.is_set():
                if ticks() > until:
                    log.warning("messages are delivered before commands that could not be read for %g s", _BEHIND_S)
                    return

    def sort_out(self, messages: Collection[StreamMessage]) -> list[Arrival]:
        """Decode messages; those that have expired are acked."""
        found = []
        for message in messages:
            queue = self.queues.get(message.topic)
            try:
                envelope = Envelope.open(message)
            except DecodeError as error:  # no other: one from outside may cut it, and says nothing of the message
                log.warning("%r is no message of kombu: %s", message, error)
                self._pull.nack(message, dead=True, error=error)
                continue
            limits = (envelope.expires_s, queue.message_ttl_s if queue is not None else None)
            if any(ttl_s is not None and waited_s(message) >= ttl_s for ttl_s in limits):
                self._pull.ack(message)
            elif queue is None:
                self._pull.release(message)
            else:
                found.append(Arrival(queue.name, message, envelope))
        return found

    def _mark_revoked(self, arrivals: list[Arrival]) -> list[Arrival]:
        """Return what is to be delivered; nothing while it is not known which tasks were revoked."""
        try:
            revoked = self._find_revoked([one.envelope for one in arrivals])
        except EmsError as error:
            self._trouble.note("waiting for the stream", error)
            for one in arrivals:
                self._pull.release(one.message)
            return []
        if not revoked:
            return arrivals
        return [replace(one, is_revoked=one.envelope.headers.get("id") in revoked) for one in arrivals]

    def add(self, queue: Queue) -> None:
        """Consume from one more queue."""
        topic = self._bindings.topic_of(queue)
        is_ranked = topic is None or topic.priorities > 1
        self._has_ranks |= bool(self.queues) or is_ranked
        if is_ranked:
            self._pull.claim_ahead(0.0)  # what is claimed cannot be overtaken
        self._pull.add(queue.topic, GROUP)
        self.queues = {**self.queues, queue.topic: queue}
        self._touch_at = 0.0
        self._changed.set()

    def remove(self, queue: Queue) -> None:
        """Consume from a queue no longer."""
        self.queues = {topic: other for topic, other in self.queues.items() if other.name != queue.name}
        self._pull.remove(queue.topic, GROUP)

    def _touch(self) -> None:
        """Keep queues from expiring while they are consumed from, and delete others that have expired."""
        if ticks() < self._touch_at:
            return
        expiring = {one.name: one.expires_s for one in self.queues.values() if one.expires_s is not None}
        try:
            if expiring:
                self._bindings.use(list(expiring))
            self._bindings.delete_unused()
        except EmsError as error:
            log.info("queues that have expired are deleted later: %s", error)
        self._touch_at = ticks() + min([_SWEEP_S, *(expires_s / 3 for expires_s in expiring.values())])

    def stop(self) -> None:
        """Ask the thread to end."""
        super().stop()
        self._changed.set()


def waited_s(message: StreamMessage) -> float:
    """Return the age of a message by the server's clock."""
    return _run_of(message).pulled.claim.waited_s(message, ticks()) or 0.0


def _run_of(message: StreamMessage) -> PulledRun:
    run = message.run
    assert isinstance(run, PulledRun), "it was pulled"
    return run
