"""The way in of a broker, and its look-ups: what an app asks of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from emsworker.broker.channel import Channel
from emsworker.broker.keys import KeyBackend
from emsworker.broker.results import ResultBackend
from emsworker.broker.schedules import ScheduleStore
from emsworker.core.model import Group, NewMessage, Order, Receipt, Topic
from emsworker.core.process.threads import ThreadPool
from emsworker.core.selection.filters import Filter
from emsworker.publish.transaction import OutboxTransaction, Sender

if TYPE_CHECKING:
    from emsworker.broker.mysql import MysqlBroker


class Broker(Protocol):
    """The keeper of messages: the stream in MySQL, on one server or several, or one in memory.

    Attributes:
        in_memory: messages end with this process, and there is no server.
    """

    in_memory: bool

    # -- its servers ---------------------------------------------------------------------------------------------------

    @property
    def servers(self) -> Mapping[str, MysqlBroker]:
        """The stream on each server by its name, the main one first.

        Raises:
            EmsError: it is in memory; so for :attr:`home`, :meth:`server` and :meth:`kept_by`.
        """
        ...

    @property
    def home(self) -> MysqlBroker:
        """The stream on the server from which this process consumes, by default the main one."""
        ...

    def home_of(self, transaction: Any) -> str:
        """Return the name of the server of a caller's open transaction."""
        ...

    def forget(self, topic: str) -> None:
        """Look up where a topic is at its next use."""
        ...

    def live_on(self, server: str) -> None:
        """Consume from this server from now on.

        Raises:
            ConfigError: there is no server of that name.
        """
        ...

    def server(self, name: str) -> MysqlBroker:
        """Return the stream on a server.

        Raises:
            ConfigError: there is no server of that name.
        """
        ...

    def locate(self, topic: str) -> tuple[str, ...]:
        """Return the servers that have kept a topic; the last one keeps it now.

        Raises:
            UnknownTopic, InvalidName: of several servers none has it, and it may not be created.
        """
        ...

    def kept_by(self, topic: str) -> MysqlBroker:
        """Return the stream on the server that keeps a topic; see :meth:`locate`."""
        ...

    def served(self, topics: Sequence[str]) -> dict[str, bool]:
        """Return which topics are consumed on the home server: those that it keeps, or has kept (false).

        Topics that are nowhere yet are created, if that is allowed; no other server is asked about those that exist.

        Raises:
            StoreUnavailable: a topic is nowhere yet, and not every server could be asked whether it has it.
            UnknownTopic: a topic is nowhere, and may not be created.
        """
        ...

    # -- the way in, and look-ups --------------------------------------------------------------------------------------

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

    def topic_on(self, stream: MysqlBroker, name: str) -> Topic:
        """Return a topic as one of the servers has it: its messages can be stored there, wherever it is kept."""
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

    def send(self, topic: str, messages: Sequence[NewMessage], transaction: Any = None) -> list[Receipt]:
        """Store messages of one topic, and return after their commit, or in the caller's transaction.

        Args:
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
        """Cancel a message, also while it runs; return false if every group has finished it.

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

    @property
    def schedules(self) -> ScheduleStore:
        """The schedules that users create at run time."""
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
