"""The broker in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from emsworker.broker.memory.channel import MemoryChannel
from emsworker.broker.memory.dedup import DedupKeys
from emsworker.broker.memory.group import KeptGroup, KeptRetry
from emsworker.broker.memory.log import KeptMessage, MessageLog
from emsworker.broker.memory.once import MemoryKeys
from emsworker.broker.memory.results import MemoryResults
from emsworker.broker.memory.schedules import MemorySchedules
from emsworker.broker.memory.transactions import HeldSend, NoConnection, Transactions
from emsworker.core.codec import Decoder
from emsworker.core.config import Settings, TopicSettings
from emsworker.core.declaration import check_declared
from emsworker.core.errors import EmsError, unknown_message
from emsworker.core.flush import ResultRow
from emsworker.core.ids import check_name, parse_uid, uid_text
from emsworker.core.model import Failure, Group, NewMessage, Order, Receipt, Topic, TopicKind, TopicRule
from emsworker.core.priority import PRIORITIES
from emsworker.core.process.threads import ThreadPool
from emsworker.core.selection.filters import EVERYTHING, Filter
from emsworker.core.servers import MAIN
from emsworker.publish.outgoing import admit
from emsworker.publish.transaction import OutboxTransaction, Sender

_KEPT_S = 86_400  # for which the result of a cancelled message says so


class MemoryBroker:
    """A stream in memory; see :class:`emsworker.broker.port.Broker`.

    Args:
        settings: the app's.
        settings_of: returns the settings with which a topic is created.
        connection: a PyMySQL connection for the SQL of transactions.
        on_send: called when messages were accepted.
        on_cancel: called when one was cancelled.

    Attributes:
        log: every message that was sent.
        schedules: those of the app's code, and those that users create.
        dead: the dead letters: the group's id, the message, and its last failure.
        kept_of_extensions: what extensions keep, by their names.
    """

    in_memory = True

    def __init__(
        self,
        settings: Settings,
        settings_of: TopicSettings,
        connection: Any = None,
        on_send: Callable[[], None] = lambda: None,
        on_cancel: Callable[[KeptMessage], None] = lambda kept: None,
    ) -> None:
        self.pool = ThreadPool(0)  # an eager run in a thread could wait for the thread that its handler sends with
        self._settings, self._settings_of = settings, settings_of
        self._on_send, self._on_cancel = on_send, on_cancel
        self._offset_s = timedelta()
        self._topics: dict[str, Topic] = {}
        self._groups: dict[tuple[str, str], KeptGroup] = {}
        self._dedup = DedupKeys(self.now, self._is_unfinished)
        self._keys = MemoryKeys(self.now)
        self.connection = connection
        self.decoder = Decoder(settings.accept, settings.budget)
        self.log = MessageLog(self.now)
        self.transactions = Transactions(self._commit, lambda held: self._dedup.restore(held.keys))
        self.kept_results = MemoryResults(self.now)
        self.schedules = MemorySchedules(self.now, self.transactions)
        self.dead: list[tuple[int, KeptMessage, Failure]] = []
        self.kept_of_extensions: dict[str, Any] = {}

    # -- time ----------------------------------------------------------------------------------------------------------

    def now(self) -> datetime:
        """Return the clock, in UTC: real time plus what was added to it."""
        return datetime.now(UTC) + self._offset_s

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self._offset_s += timedelta(seconds=seconds)

    def next_due(self) -> datetime | None:
        """Return when the next retry or delayed message is due, or ``None``."""
        waiting = [one.due_at for state in self._groups.values() for one in state.retries.values() if not one.claim_id]
        return min((at for at in [*waiting, self.log.next_due()] if at is not None), default=None)

    # -- its servers: none ---------------------------------------------------------------------------------------------

    @property
    def servers(self) -> NoReturn:
        """Raise an error: there is no server."""
        _no_server()

    @property
    def home(self) -> NoReturn:
        """Raise an error: there is no server."""
        _no_server()

    def home_of(self, transaction: Any) -> str:
        """Return the name that the main server has where there are servers."""
        return MAIN

    def forget(self, topic: str) -> None:
        """Do nothing: nothing is looked up elsewhere."""

    def live_on(self, server: str) -> None:
        """Do nothing: there is one place."""

    def server(self, name: str) -> NoReturn:
        """Raise an error: there is no server."""
        _no_server()

    def locate(self, topic: str) -> tuple[str, ...]:
        """Return the name that the main server has where there are servers."""
        return (MAIN,)

    def kept_by(self, topic: str) -> NoReturn:
        """Raise an error: there is no server."""
        _no_server()

    def served(self, topics: Sequence[str]) -> dict[str, bool]:
        """Return that every topic is consumed here."""
        return dict.fromkeys(topics, True)

    # -- topics and groups ---------------------------------------------------------------------------------------------

    def prepare(self, topic: str | None = None) -> None:
        """Do nothing: there is no connection."""

    def topic(self, name: str) -> Topic:
        """Return a topic; every topic exists, and cluster topics have priorities."""
        if name not in self._topics:
            check_name("topic", name)
            kind = self._settings_of(name)["kind"]
            levels = len(PRIORITIES) if kind is TopicKind.CLUSTER else 1
            size = self._settings.max_message_bytes
            topic = Topic(len(self._topics) + 1, name, kind, 1, TopicRule.READ_WRITE, size, None, priorities=levels)
            self._topics[name] = topic
        return self._topics[name]

    def topic_on(self, stream: object, name: str) -> Topic:
        """Return a topic; there is one place."""
        return self.topic(name)

    def group(self, topic: Topic, name: str, declared: Filter | None = None, order: Order = Order.NONE) -> Group:
        """Return a group of a topic, made at its first use; it reads the topic from the start."""
        state = self._groups.get((topic.name, name))
        if state is None:
            s, number = self._settings, len(self._groups) + 1
            check_name("group", name)
            limits = s.timeout_s, str(s.ladder), s.max_attempts
            group = Group(number, topic.id, name, *limits, False, declared or EVERYTHING, order)
            state = self._groups[topic.name, name] = KeptGroup(group)
        check_declared(topic, state.group, declared, order)
        return state.group

    def state(self, group_id: int) -> KeptGroup:
        """Return where a group is."""
        return next(state for state in self._groups.values() if state.group.id == group_id)

    # -- the way in ----------------------------------------------------------------------------------------------------

    def send(self, topic: str, messages: Sequence[NewMessage], transaction: Any = None) -> list[Receipt]:
        """Store messages, or hold them until their transaction ends."""
        found = self.topic(check_name("topic", topic))
        for message in messages:
            admit(found, message)
        held = None if transaction is None else self.transactions.held_by(transaction)
        receipts = [self._send_one(found, message, held) for message in messages]
        if held is None:
            self._on_send()
        return receipts

    def _send_one(self, topic: Topic, message: NewMessage, held: HeldSend | None) -> Receipt:
        holder = self._dedup.take(topic, message, {} if held is None else held.keys)
        if holder is not None:
            return Receipt(uid_text(holder), topic.name, None, None, created=False)
        if held is not None:
            held.messages.append((topic, message))
            return Receipt(uid_text(message.uid), topic.name, None, None)
        receipt = self.log.accept(topic, message)
        return receipt if message.dedup_key is None else replace(receipt, partition=None, offset=None)

    def _is_unfinished(self, topic: Topic, uid: bytes) -> bool:
        kept = self.log.known(topic.id, uid)
        return self.transactions.holds(topic, uid) or (kept is not None and self._waits(kept))

    def waits(self, uid: bytes) -> bool:
        """Return whether a message is still to be run."""
        kept = self.log.find(uid, None)
        return kept is not None and self._waits(kept)

    def _waits(self, kept: KeptMessage) -> bool:
        """Return whether a message is not due yet, or a group has not finished it, or there is no group yet."""
        if kept.cancelled:
            return False
        groups = self._groups_of(kept.topic)
        return not kept.offset or not groups or not all(state.is_finished(kept) for state in groups)

    def _groups_of(self, topic: Topic) -> list[KeptGroup]:
        return [state for (name, _), state in self._groups.items() if name == topic.name]

    def _commit(self, held: HeldSend) -> None:
        for topic, message in held.messages:
            self.log.accept(topic, message)

    @contextlib.contextmanager
    def transaction(self, sender: Sender) -> Iterator[OutboxTransaction]:
        """Return a transaction that commits SQL, over the broker's connection, and messages together."""
        connection = self.connection or NoConnection()
        transaction = OutboxTransaction(connection, sender)
        with self.transactions.during(transaction, connection):
            yield transaction
        self._on_send()
        sender.after_commit(transaction.sent)

    # -- look-ups ------------------------------------------------------------------------------------------------------

    def cancel(self, message_id: str, topic: str | None) -> bool:
        """Cancel a message, also while it runs.

        Raises:
            UnknownMessage: it is not there.
        """
        uid = parse_uid(message_id)
        kept = self.log.find(uid, topic)
        if kept is None:
            if (result := self.kept_results.find([uid]).get(uid)) is not None and result.cancelled:
                return True  # it was delayed
            raise unknown_message([topic] if topic else [], message_id)
        if kept.cancelled:
            return True
        if not self._waits(kept):
            return False
        self.log.cancel(kept)
        self.kept_results.put(ResultRow(kept.new.uid, None, ttl_s=_KEPT_S, cancelled=True))
        for state in self._groups_of(kept.topic):
            state.cancel(kept, self.now())
        self._on_cancel(kept)  # last: it may be the message of this thread
        return True

    def requeue(self, uid: bytes) -> bool:
        """Run a message again that is a dead letter; false if it is none."""
        for letter in self.dead:
            group_id, kept, _ = letter
            if kept.new.uid == uid:
                self.dead.remove(letter)
                (state,) = (one for one in self._groups.values() if one.group.id == group_id)
                key = kept.new.key if state.group.order is Order.KEY else None
                state.retries[kept.partition, kept.offset] = KeptRetry(0, self.now(), key)
                self._on_send()
                return True
        return False

    def results(self, topics: Sequence[str], group: str | None) -> MemoryResults:
        """Return the results of calls; they do not wait, so the calls must have run."""
        return self.kept_results

    def keys(self, backend: str) -> MemoryKeys | None:
        """Return the idempotency keys."""
        return self._keys if backend in ("mysql", "redis") else None

    def channel(self, *, patient: bool = True) -> MemoryChannel:
        """Open a channel for a thread that consumes."""
        return MemoryChannel(self)

    def close(self) -> None:
        """Do nothing: there is no connection."""


def _no_server() -> NoReturn:
    raise EmsError("the app runs in memory, without a database; use the fixture ems_stream for a test that needs one")
