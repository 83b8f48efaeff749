"""The way in of a broker, and its look-ups: what an app asks of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Protocol

from emsworker.broker.channel import Channel
from emsworker.broker.keys import KeyBackend
from emsworker.broker.results import ResultBackend
from emsworker.core.model import Group, NewMessage, Order, Receipt, Topic
from emsworker.core.process.threads import ThreadPool
from emsworker.core.selection.filters import Filter
from emsworker.publish.outbox import OutboxTransaction, Sender
from emsworker.publish.outgoing import Outgoing


class Broker(Protocol):
    """The keeper of messages: the stream in MySQL, or one in memory."""

    @property
    def pool(self) -> ThreadPool:
        """The threads on which coroutines call it."""
        ...

    def prepare(self, topic: str | None = None) -> None:
        """Connect, and look a topic up, so that a send in a caller's transaction has only its own SQL to wait for.

        Raises:
            SchemaMissing: ``ems migrate`` has not been run.
            AccessDenied, StoreUnavailable: the database cannot be reached.
            UnknownTopic, InvalidName: as :meth:`topic`.
        """
        ...

    def topic(self, name: str) -> Topic:
        """Return a topic, created on first use if that is allowed.

        Raises:
            UnknownTopic: it does not exist, and auto-create is off.
            InvalidName: no topic can have that name.
        """
        ...

    def group(self, topic: Topic, name: str, declared: Filter | None = None, order: Order = Order.NONE) -> Group:
        """Return a group of a topic, created on first use if that is allowed.

        Args:
            declared, order: the filter and the order that its handlers ask for.

        Raises:
            UnknownGroup: it does not exist, and auto-create is off.
            ConfigError: it has another filter or order, or the topic is for broadcasts.
        """
        ...

    def send(
        self, topic: str, outgoing: Sequence[Outgoing], messages: Sequence[NewMessage], transaction: Any = None
    ) -> list[Receipt]:
        """Store messages of one topic, and return after their commit, or in the caller's transaction.

        Args:
            outgoing: as the app sent them.
            messages: the same, encoded.
            transaction: an open transaction that the messages are committed with.

        Raises:
            UnknownTopic, TopicRuleError, MessageTooLarge, InvalidName, InvalidPriority: nothing was sent.
            PublishTimeout: no confirmation in time; the messages may or may not have been committed.
        """
        ...

    def transaction(self, sender: Sender) -> AbstractContextManager[OutboxTransaction]:
        """Return a transaction that commits SQL and messages together; ``sender`` sends with it."""
        ...

    def cancel(self, message_id: str, topic: str | None) -> bool:
        """Cancel a message that was not run yet; return false if every group has finished it.

        Args:
            topic: where it is; ``None`` to look in every topic.

        Raises:
            UnknownMessage: it is not there.
        """
        ...

    def results(self, topics: Sequence[str], group: str | None) -> ResultBackend:
        """Return the results of calls that were sent to these topics."""
        ...

    def keys(self, backend: str) -> KeyBackend | None:
        """Return the idempotency keys in ``mysql`` or ``redis``, or ``None`` if there is no such backend."""
        ...

    def now(self) -> datetime:
        """Return the time by the broker's clock, in UTC."""
        ...

    def channel(self, *, patient: bool = True) -> Channel:
        """Open a connection for a thread that consumes; nothing else makes a channel.

        Args:
            patient: do a packet again after a conflict with another transaction; otherwise raise :class:`Conflict`.
        """
        ...

    def close(self) -> None:
        """Close all connections; they are opened again when needed."""
        ...
