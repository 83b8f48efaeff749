"""PyMySQL's connection with what it lacks for us: shared TLS contexts, and transactions lent to handlers."""

from __future__ import annotations

import contextlib
import encodings.idna  # of every host's name at its first use; see emsworker.opening  # noqa: F401
import os
import ssl
from typing import TYPE_CHECKING, Any

from pymysql.connections import Connection as _PyMySQLConnection
from pymysql.constants import CR
from pymysql.err import InterfaceError, MySQLError, OperationalError

from emsworker.core.forks import after_fork, undivided
from emsworker.store.errors import may_roll_back, rolls_back
from emsworker.store.tls import trusting_context

if TYPE_CHECKING:
    _Connection = _PyMySQLConnection[Any]
else:
    _Connection = _PyMySQLConnection

# Statements that leave the session's database as it is; whatever else a handler sends may have said USE.
_STAYS = ("INSERT", "UPDATE", "DELETE", "SELECT", "REPLACE", "WITH")
# What a handler can change on the object itself; given back as it was.
_OWN = ("decoders", "encoders", "charset", "encoding", "collation", "cursorclass", "autocommit_mode", "init_command")


class Connection(_Connection):
    """PyMySQL's connection, with four differences.

    A transaction is opened by the packet that carries its first statement, so that this costs no round trip.

    While it is lent to a handler it remembers what the server said: an error that rolled the transaction back ends the
    transaction for good, even if the handler catches it, and nothing reconnects behind our back.

    One that takes TLS where the server has it, without a demand, gets no context of its own. PyMySQL makes each a new
    one and loads all certificates of the system's CAs into it, none of which it looks at: 0.8 MiB for each connection
    of each thread.

    In a forked child it is closed without a word to the server, which goes on serving the parent.

    Attributes:
        opening: the statements that go ahead of the next one, to open a transaction.
        lent: a handler has it, or had it and the session is not yet as it was.
        moved: the handler may have chosen another database.
        rolled_back_by: the error with which the server rolled back the transaction that is lent.
        perhaps_rolled_back_by: one with which it may have done so.
        inherited: whether the parent opened it.
    """

    opening: tuple[str, ...] = ()
    lent: bool = False
    moved: bool = False
    rolled_back_by: MySQLError | None = None
    perhaps_rolled_back_by: MySQLError | None = None
    inherited: bool = False
    server_status: int
    max_allowed_packet: int
    _result: Any
    _sock: Any
    _rfile: Any

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        after_fork(self._leave_to_parent)

    def query(self, sql: str | bytes, unbuffered: bool = False) -> int:
        """Send a statement; its own result is the one that follows, whatever goes ahead of it.

        Raises:
            MySQLError: the server's error; also, again, the one that has rolled back the transaction that is lent.
        """
        if self.inherited:
            raise InterfaceError(0, "this connection belongs to the process that forked this one; open another here")
        if self.lent:
            self._note(sql)
        opening, self.opening = self.opening, ()
        if not opening:
            return super().query(sql, unbuffered)
        text = sql.encode(self.encoding, "surrogateescape") if isinstance(sql, str) else sql
        super().query(";".join(opening).encode() + b";" + text, unbuffered)
        for _ in opening[1:]:
            super().next_result()
        if self._result.has_next:
            return self.next_result(unbuffered)
        return super().query(text, unbuffered)  # an empty statement is cut off by the server, which is to say so itself

    def _note(self, sql: str | bytes) -> None:
        if self.rolled_back_by is not None:
            raise self.rolled_back_by
        head = sql[:64].lstrip()[:7]
        word = head if isinstance(head, str) else head.decode("latin-1")  # of executemany it is a bytearray
        self.moved |= not word.upper().startswith(_STAYS)

    def next_result(self, unbuffered: bool = False) -> int:
        """Go on to the result of the next statement of a packet."""
        self.moved |= self.lent  # of several statements only the first was looked at
        return super().next_result(unbuffered)

    def select_db(self, db: str) -> None:
        """Choose another database."""
        self.moved = True
        super().select_db(db)

    def connect(self, sock: Any = None) -> None:
        """Connect; never again while it is lent.

        Raises:
            OperationalError: what a new session did would be committed by itself, outside the handler's transaction.
        """
        if self.lent:
            raise OperationalError(CR.CR_SERVER_LOST, "the connection was lost in a transaction, and that with it")
        super().connect(sock)

    def _leave_to_parent(self) -> None:
        """Close the descriptor alone: closing its buffer would wait for a thread of the parent that reads just now."""
        socket, self._sock, self._rfile = self._sock, None, None
        self.inherited = True
        if socket is not None:
            with contextlib.suppress(OSError):
                os.close(socket.detach())

    def _create_ssl_ctx(self, sslp: object) -> ssl.SSLContext:
        if isinstance(sslp, ssl.SSLContext):
            return sslp
        with undivided:
            return trusting_context()

    def _request_authentication(self) -> None:
        """Shake hands, where TLS is spoken, and log in."""
        with undivided:
            super()._request_authentication()  # type: ignore[misc]


class Loan:
    """A connection in the hands of a handler: it behaves as users of PyMySQL know it, and is listened to.

    Args:
        connection: whose transaction is open or about to be.
        decoders: for the handler, instead of the connection's own.
    """

    def __init__(self, connection: Connection, decoders: dict[int, Any]) -> None:
        self._connection = connection
        self._own = {name: getattr(connection, name) for name in _OWN}
        # Copies: what is put into these or taken out of them is not for the next one.
        connection.lent, connection.decoders, connection.encoders = True, dict(decoders), dict(self._own["encoders"])
        listening: Any = connection
        self._read_packet = listening._read_packet
        listening._read_packet = self._listen  # on the object: reading rows of our own stays as quick as it is

    def _listen(self, *args: Any) -> Any:
        try:
            return self._read_packet(*args)
        except MySQLError as error:
            # Kept here, because the driver knows the flags of the last OK packet only: after an error they still say
            # that the transaction is open.
            if rolls_back(error):
                self._connection.rolled_back_by = error
            elif may_roll_back(error):
                self._connection.perhaps_rolled_back_by = error
            raise

    def end(self) -> None:
        """Give the object back as it was; the session behind it may still be as the handler left it."""
        del self._connection._read_packet
        for name, value in self._own.items():
            setattr(self._connection, name, value)
