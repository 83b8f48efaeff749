"""Looks into a database over one connection: to open one for each look of a poll would load the server."""

import threading
from typing import Any

import pymysql

from tests.support.servers import connect


class Looker:
    """Queries, each in a snapshot of its own; connects anew when the server was away.

    Args:
        url: of the database.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._one_at_a_time = threading.Lock()
        self._connection: pymysql.Connection[pymysql.cursors.Cursor] | None = None

    def rows(self, statement: str, *args: Any) -> list[tuple[Any, ...]]:
        """The rows of a query; a statement that changes something is committed."""
        with self._one_at_a_time:
            try:
                return self._rows(statement, args)
            except (pymysql.err.OperationalError, pymysql.err.InterfaceError):
                self.close()
                return self._rows(statement, args)

    def _rows(self, statement: str, args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        if self._connection is None:
            self._connection = connect(self.url, autocommit=True)
        with self._connection.cursor() as cursor:
            cursor.execute(statement, args)
            return list(cursor.fetchall())

    def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None and connection.open:
            connection.close()
