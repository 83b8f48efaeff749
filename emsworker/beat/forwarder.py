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

from emsworker.broker.forwarding import ForwardedOutbox
from emsworker.broker.placed import PlacedBroker
from emsworker.core.config import Settings
from emsworker.core.errors import DecodeError, EmsError, MessageTooLarge
from emsworker.core.model import NewMessage
from emsworker.core.process.clock import ticks
from emsworker.core.process.polling import PollInterval
from emsworker.core.process.runnable import OnDeath, Runnable
from emsworker.core.servers import ForwardTopic, KeptTopic, later_servers

log = logging.getLogger(__name__)

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
        holder = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}"[-128:]
        self._outbox = ForwardedOutbox(servers.server(source), target, holder)
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
        self._leads = self._outbox.try_to_lead(lease_s)

    def _forward_all(self) -> int:
        return sum(self._forward(one) for one in self._outbox.topics())

    def _forward(self, one: ForwardTopic) -> int:
        """Forward a batch of a topic; returns how many messages are no longer here."""
        name = self._servers.locate(one.topic)[-1]
        kept = self._servers.server(name).kept_topic(one.topic)
        if kept is None or name == self._source_name:  # it has moved on, or to the relay of this server
            self._servers.forget(one.topic)
            return 0
        gone = 0
        for part in self._outbox.batches(one.topic_id):
            try:
                handed_over = self._hand_over(one.topic, name, kept, [*map(self._outbox.with_body, part)])
            except (MessageTooLarge, DecodeError) as error:
                if len(part) > 1:
                    raise
                self._outbox.refuse(one.topic_id, part[0].uid, f"server {name} does not take it: {error}")
                continue
            if not handed_over:
                self._servers.forget(one.topic)
                break
            if not self._outbox.delete(one, part):
                break
            gone += len(part)
        return gone

    def _hand_over(self, topic: str, name: str, kept: KeptTopic, messages: list[NewMessage]) -> bool:
        """Let the server that keeps a topic accept messages, except those that one before it has accepted."""
        for former in later_servers(kept.former, self._source_name):
            if former in self._servers.servers:
                uids = [message.uid for message in messages]
                accepted = self._servers.server(former).find_accepted(topic, uids)
                messages = [message for message in messages if message.uid not in accepted]
        return self._servers.server(name).accept(kept, messages)

    def shut_down(self) -> None:
        """Let another process forward at once."""
        try:
            if self._leads:
                self._outbox.resign()
        except EmsError:
            log.info("could not give up forwarding; the lease runs out by itself")
        for broker in self._servers.servers.values():
            if "database" in vars(broker):
                broker.database.thread_session().close()


def forwarders(settings: Settings, source: str, on_death: OnDeath) -> list[Forwarder]:
    """Return a thread for each other server to which one has to forward; none if there is one server."""
    if not settings.servers:
        return []
    # A topic that it would have to create was deleted on the server that kept it.
    servers = PlacedBroker(settings, lambda name: settings.new_topic())
    return [Forwarder(servers, source, name, settings, on_death) for name in servers.servers if name != source]
