"""PyMySQL's connection, with what it lacks for us: shared TLS contexts, and transactions that open on the way."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

import pymysql

from emsworker.store.tls import trusting_context

if TYPE_CHECKING:
    _Connection = pymysql.connections.Connection[Any]
else:
    _Connection = pymysql.connections.Connection


class Connection(_Connection):
    """PyMySQL's, with two differences.

    A transaction is opened by the packet that carries its first statement, so that this costs no round trip.

    One that takes TLS where the server has it, without a demand, gets no context of its own. PyMySQL makes each a new
    one and loads all certificates of the system's CAs into it, none of which it looks at: 0.8 MiB for each connection
    of each thread.

    Attributes:
        opening: the statement that goes ahead of the next one, to open a transaction.
    """

    opening: str | None = None
    server_status: int
    _result: Any

    def query(self, sql: str | bytes, unbuffered: bool = False) -> int:
        """Send a statement; its own result is the one that follows, whatever goes ahead of it."""
        opening, self.opening = self.opening, None
        if opening is None:
            return super().query(sql, unbuffered)
        text = sql.encode(self.encoding, "surrogateescape") if isinstance(sql, str) else sql
        super().query(opening.encode() + b";" + text, unbuffered)
        if self._result.has_next:
            return self.next_result(unbuffered)
        return super().query(text, unbuffered)  # an empty statement is cut off by the server, which is to say so itself

    def rollback(self) -> None:
        """Roll back, or never begin."""
        self.opening = None
        super().rollback()

    def _create_ssl_ctx(self, sslp: object) -> ssl.SSLContext:
        return sslp if isinstance(sslp, ssl.SSLContext) else trusting_context()
