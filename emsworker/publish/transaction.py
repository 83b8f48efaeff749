"""The open transaction that a transactional handler works in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pymysql.cursors import Cursor

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
