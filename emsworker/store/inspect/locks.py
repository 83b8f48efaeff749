"""Transactions that hold up others by their locks on the stream's tables."""

from __future__ import annotations

from dataclasses import dataclass

from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements

_SQL = Statements(__name__)


@dataclass(frozen=True)
class LockHolder:
    """A transaction for which others wait now, and which waits for nobody.

    Attributes:
        transaction_id: the server's.
        connection_id: what ``KILL`` takes.
        user, host: of the connection; empty if it has just gone.
        table: one that it has locked rows of, and others wait for.
        waiting: how many transactions wait for it.
    """

    transaction_id: int
    connection_id: int
    user: str
    host: str
    table: str
    waiting: int


def list_holders(session: Session, *, is_mariadb: bool) -> list[LockHolder]:
    """Return the transactions for which others wait at our tables.

    Raises:
        AccessDenied: this user may not see locks; see the statements.
    """
    rows = session.rows(_SQL.list_holders_mariadb if is_mariadb else _SQL.list_holders_mysql)
    return [
        LockHolder(int(number), int(connection), user, host, table, int(waiting))
        for number, connection, user, host, table, waiting in rows
    ]
