"""Open transactions: that which a transactional handler works in, and that of :meth:`Ems.transaction`, which sends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, Unpack

from pymysql.cursors import Cursor

from emsworker.core.model import Receipt, Topic
from emsworker.publish.outgoing import Outgoing, SendOptions

Args = Sequence[Any] | Mapping[str, Any] | None


class Transaction:
    """A transaction in which SQL and the ack of the message commit atomically.

    It has no commit and no rollback: the worker commits when the handler returns and rolls back when it raises. After
    an UPDATE, ``cursor.rowcount`` counts the rows that matched (CLIENT.FOUND_ROWS).
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def cursor(self, kind: type[Cursor] | None = None) -> Cursor:
        """A cursor of PyMySQL inside the transaction."""
        cursor: Cursor = self._connection.cursor(kind)
        return cursor

    def execute(self, statement: str, args: Args = None) -> Cursor:
        """Run one statement and return its cursor."""
        cursor = self.cursor()
        cursor.execute(statement, args)
        return cursor

    def executemany(self, statement: str, rows: Iterable[Args]) -> Cursor:
        """Run a statement for many rows; INSERTs are merged by PyMySQL."""
        cursor = self.cursor()
        cursor.executemany(statement, rows)
        return cursor


class Sender(Protocol):
    """The app that sends messages."""

    def send(self, topic: str, body: Any, *, transaction: Any = None, **options: Unpack[SendOptions]) -> Receipt:
        """Send one message."""
        ...

    def send_many(
        self, topic: str, bodies: Iterable[Any], *, transaction: Any = None, **options: Unpack[SendOptions]
    ) -> list[Receipt]:
        """Send many messages."""
        ...

    def after_commit(self, sent: Iterable[tuple[Outgoing, Receipt]]) -> None:
        """Called for messages that have been committed."""
        ...


class OutboxTransaction(Transaction):
    """A transaction of :meth:`Ems.transaction`: SQL and messages that are committed together.

    Attributes:
        sent: what was sent with it, for the hooks after its commit.
        written: the same, where it was written.
        fills_outbox: statements of its own have written to the outbox, too.
    """

    def __init__(self, connection: Any, sender: Sender) -> None:
        super().__init__(connection)
        self._sender = sender
        self.sent: list[tuple[Outgoing, Receipt]] = []
        self.written: list[tuple[Topic, Receipt]] = []
        self.fills_outbox = False

    def send(self, topic: str, body: Any, **options: Unpack[SendOptions]) -> Receipt:
        """Send with this transaction; the arguments are those of :meth:`Ems.send`."""
        return self._sender.send(topic, body, transaction=self, **options)

    def send_many(self, topic: str, bodies: Iterable[Any], **options: Unpack[SendOptions]) -> list[Receipt]:
        """Send many with this transaction; the arguments are those of :meth:`Ems.send_many`."""
        return self._sender.send_many(topic, bodies, transaction=self, **options)
