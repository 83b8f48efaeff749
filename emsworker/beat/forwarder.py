"""Forwarding of messages that a transaction sent to a topic of another server, out of the outbox of its own.

One thread for each pair of servers, so that a server that is away delays nothing but what is meant for it. One of all
processes does it at a time, which keeps the order; two, one of them paused, would do no harm: each message is accepted
once (:mod:`emsworker.store.stream.forwards`).
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from functools import partial

from emsworker.broker.placed import PlacedBroker
from emsworker.core.batches import in_batches
from emsworker.core.codec import LARGE_MARK
from emsworker.core.config import Settings
from emsworker.core.errors import DecodeError, EmsError, MessageTooLarge
from emsworker.core.large import carry, reference_of
from emsworker.core.model import NewMessage
from emsworker.core.process.clock import ticks
from emsworker.core.process.polling import PollInterval
from emsworker.core.process.runnable import OnDeath, Runnable
from emsworker.store.cluster import clients
from emsworker.store.stream import forwards, large, outbox
from emsworker.store.stream.messages import row_bytes

log = logging.getLogger(__name__)

_BATCH, _BYTES = 200, 4 << 20
_SHORTEST_S, _LONGEST_S = 0.025, 1.0
_RENEWALS = 3  # within a lease
_LONGEST_PAUSE_S = 30.0


class Forwarder(Runnable):
    """Moves messages from the outbox of one server to the topics of another.

    Args:
        servers: all servers; the thread uses sessions of its own.
        source, target: names of the two.
        settings: beat_s, beat_lease_s, poll_max_s.
        on_death: see :class:`Runnable`.
    """

    outlasts = (Exception,)  # it goes on as soon as both servers are there

    def __init__(self, servers: PlacedBroker, source: str, target: str, settings: Settings, on_death: OnDeath) -> None:
        super().__init__(f"ems-forward-{source}-{target}", on_death)
        self._servers, self._source_name, self._target, self._settings = servers, source, target, settings
        self.action = f"forward messages from server {source} to server {target}"
        self._source = servers.server(source)
        self._service = f"forward:{target}"[:64]
        self._holder = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}"[-128:]
        self._leads, self._next_claim = False, 0.0
        self._interval = PollInterval(_SHORTEST_S, _LONGEST_S)
        self.away_s = settings.beat_s

    def step(self) -> None:
        """Forward one batch of each topic, if no other process does."""
        if ticks() >= self._next_claim:
            self._claim()
        if self._leads and self._forward_all():
            self._interval.note()
        self.away_s = self._settings.beat_s
        self.sleep(min(self._interval.pause_s(ticks()), self._settings.poll_max_s))

    def on_trouble(self, error: Exception) -> None:
        """Try again, less and less often, until both servers are there."""
        self._next_claim = 0.0
        self.away_s = min(2 * self.away_s, _LONGEST_PAUSE_S)
        super().on_trouble(error)

    def _claim(self) -> None:
        lease_s = self._settings.beat_lease_s
        self._next_claim = ticks() + max(self._settings.beat_s, lease_s / _RENEWALS)
        self._leads = self._source.database.call(
            lambda session: clients.try_to_lead(session, self._service, self._holder, lease_s), lease_s
        )

    def _forward_all(self) -> int:
        database = self._source.database
        waiting = database.call(lambda session: forwards.find_waiting(session, self._target))
        return sum(self._forward(one) for one in waiting)

    def _forward(self, one: forwards.ForwardTopic) -> int:
        """Forward a batch of a topic; returns how many messages are no longer here."""
        name = self._servers.locate(one.topic)[-1]
        kept = self._servers.server(name).kept_topic(one.topic)
        if kept is None or name == self._source_name:  # it has moved on, or to the relay of this server
            self._servers.forget(one.topic)
            return 0
        database, gone = self._source.database, 0
        messages = database.call(lambda session: forwards.read(session, one.topic_id, _BATCH, _BYTES))
        for part in in_batches(messages, _weight, _BYTES):
            try:
                handed_over = self._hand_over(one.topic, name, kept, self._with_bodies(part))
            except (MessageTooLarge, DecodeError) as error:
                if len(part) > 1:
                    raise
                why = f"server {name} does not take it: {error}"
                database.call(partial(outbox.refuse, topic_id=one.topic_id, uid=part[0].uid, why=why))
                continue
            if not handed_over:
                self._servers.forget(one.topic)
                break
            uids = [message.uid for message in part]
            if not database.call(partial(forwards.delete, topic_id=one.topic_id, uids=uids, last_move=one.last_move)):
                break
            gone += len(part)
        return gone

    def _hand_over(self, topic: str, name: str, kept: forwards.KeptTopic, messages: list[NewMessage]) -> bool:
        """Let the server that keeps a topic accept messages, except those that one before it has accepted."""
        for former in forwards.later(kept.former, self._source_name):
            if former in self._servers.servers:
                uids = [message.uid for message in messages]
                accepted = self._servers.server(former).find_accepted(topic, uids)
                messages = [message for message in messages if message.uid not in accepted]
        return self._servers.server(name).accept(kept, messages)

    def _with_bodies(self, messages: list[NewMessage]) -> list[NewMessage]:
        """Return the messages with the bodies that are kept beside them, which the other server has to have, too.

        Raises:
            DecodeError: one is not there.
        """
        return [self._with_body(message) for message in messages]

    def _with_body(self, message: NewMessage) -> NewMessage:
        found = reference_of(message)
        if found is None:
            return message
        whole = self._source.database.call(partial(large.read, large=found))
        return carry(message, found, whole)

    def shut_down(self) -> None:
        """Let another process forward at once."""
        try:
            if self._leads:
                self._source.database.call(lambda s: clients.resign(s, self._service, self._holder), 1.0)
        except EmsError:
            log.info("could not give up forwarding; the lease runs out by itself")
        for broker in self._servers.servers.values():
            if "database" in vars(broker):
                broker.database.thread_session().close()


def _weight(message: NewMessage) -> int:
    """Return the bytes of a message in a batch; one whose body is kept beside it goes alone."""
    return _BYTES + 1 if message.body.startswith(LARGE_MARK) else row_bytes(message)


def forwarders(settings: Settings, source: str, on_death: OnDeath) -> list[Forwarder]:
    """Return a thread for each other server to which one has to forward; none if there is one server."""
    if not settings.servers:
        return []
    # A topic that it would have to create was deleted on the server that kept it.
    servers = PlacedBroker(settings, lambda name: settings.new_topic())
    return [Forwarder(servers, source, name, settings, on_death) for name in servers.servers if name != source]
