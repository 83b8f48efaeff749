"""Transactions in memory: what is sent in one is sent at its commit, or never.

SQL runs over a connection that a test gives; without one it is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from emsworker.broker.memory.dedup import DedupPlace, Holder
from emsworker.core.errors import EmsError
from emsworker.core.model import NewMessage, Topic
from emsworker.publish.transaction import Transaction


class NoConnection:
    """A missing connection: SQL in a transaction raises an error."""

    def cursor(self, kind: Any = None) -> Any:
        """Raise an error, because there is no database."""
        raise EmsError(
            "this transaction has no database: give the test a connection, app.test(connection=...), "
            "or test it on a real stream with the fixture ems_stream"
        )

    def begin(self) -> None:
        """Do nothing."""

    commit = rollback = begin


@dataclass
class HeldSend:
    """Messages that an open transaction has sent, and the previous holders of the keys that it took.

    Attributes:
        undo: called, the last first, if it is rolled back.
    """

    messages: list[tuple[Topic, NewMessage]] = field(default_factory=list)
    keys: dict[DedupPlace, Holder | None] = field(default_factory=dict)
    undo: list[Callable[[], object]] = field(default_factory=list)


class Transactions:
    """The open transactions.

    Args:
        on_commit: called with what one has sent.
        on_rollback: called with the same, when nothing of it is kept.
    """

    def __init__(self, on_commit: Callable[[HeldSend], None], on_rollback: Callable[[HeldSend], None]) -> None:
        self._on_commit, self._on_rollback = on_commit, on_rollback
        self._open: dict[Transaction, HeldSend] = {}

    @contextlib.contextmanager
    def during(self, transaction: Transaction, connection: Any) -> Iterator[None]:
        """Run a transaction: commit at the end or, on any exception, roll back SQL, messages and keys."""
        held = self._open[transaction] = HeldSend()
        connection.begin()
        try:
            yield
            connection.commit()
        except BaseException:
            self._on_rollback(held)
            for undo in reversed(held.undo):
                undo()
            connection.rollback()
            raise
        finally:
            del self._open[transaction]
        self._on_commit(held)

    def held_by(self, transaction: Any) -> HeldSend:
        """Return what an open transaction has sent.

        Raises:
            EmsError: it is none of these.
        """
        held = self._open.get(transaction) if isinstance(transaction, Transaction) else None
        if held is None:
            raise EmsError(
                f"transaction={type(transaction).__name__}: in memory only the open transaction of a handler or of "
                "`with app.transaction() as tx` can send, because there is no notice when another one is committed; "
                "test this on a real stream with the fixture ems_stream"
            )
        return held

    def holds(self, topic: Topic, uid: bytes) -> bool:
        """Return whether an open transaction has sent a message."""
        return any(
            (place.id, one.uid) == (topic.id, uid) for held in self._open.values() for place, one in held.messages
        )
