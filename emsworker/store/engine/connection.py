"""PyMySQL's connection, extended: shared TLS contexts, and transactions lent to handlers."""

from __future__ import annotations

import codecs
import contextlib
import encodings.idna  # else imported for the first host name; see emsworker.preamble  # noqa: F401
import io
import os
import socket
import ssl
import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pymysql.connections import Connection as _PyMySQLConnection
from pymysql.constants import COMMAND, CR, SERVER_STATUS
from pymysql.err import InterfaceError, MySQLError, OperationalError

from emsworker.core.process.clock import ticks
from emsworker.core.process.forks import after_fork, fork_blocked, lazy
from emsworker.store.engine.errors import is_server_trouble, may_roll_back, rolls_back
from emsworker.store.engine.greeting import first_to_greet
from emsworker.store.engine.prepared import PreparedStatements
from emsworker.store.engine.sql import Sql, Statements, join
from emsworker.store.engine.tls import trusting_context

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    class _Connection(_PyMySQLConnection[Any]):
        """The methods of PyMySQL's that are overridden here, and that its stubs leave out."""

        def _force_close(self) -> None: ...
        def _request_authentication(self) -> None: ...
        def _execute_command(self, command: int, sql: str | bytes) -> None: ...
        def _read_query_result(self, unbuffered: bool = False) -> int: ...
        def _read_ok_packet(self) -> Any: ...

else:
    _Connection = _PyMySQLConnection

_SQL = Statements(__name__)
SET_AUTOCOMMIT, SET_CLOCK, SET_RESOURCES = _SQL.set_autocommit, _SQL.set_clock, _SQL.set_resources
_AGAIN_S = 1.0  # between two looks if a server that has been silent has a successor
LOCK_WAIT_S = 6.0  # after which a statement that waits for a lock has ended: connection.sql sets 5 s
# Statements that change neither the session's database nor its settings; any other one of a handler may be USE or SET.
_STAYS = ("INSERT", "UPDATE", "DELETE", "SELECT", "REPLACE", "WITH", "SAVEPOI", "RELEASE", "ROLLBAC")
# Attributes that a handler can change on the object; restored afterwards.
_OWN = ("decoders", "encoders", "charset", "encoding", "collation", "cursorclass", "autocommit_mode", "init_command")


_PREPARED = struct.Struct("<IHH")  # number of the statement, columns of its result, parameters
_SHORT_OK = 11  # bytes: a length of 7, a number of the packet, and OK, two numbers of a byte, two of two bytes
_SHORT_OK_HEADS = [bytes((7, 0, 0, number, 0)) for number in range(256)]
_NUMBER_BYTES = {0xFC: 2, 0xFD: 3, 0xFE: 8}  # that follow a byte which is not the number itself
_TEXT = "emstext"


def _size_of_numbered_ok(head: bytes, sequence: int) -> int:
    """Return the bytes of an answer that is the shortest but for an insert id of several bytes; 0 for any other."""
    more = _NUMBER_BYTES.get(head[6], 0)
    size = _SHORT_OK + more
    is_one = more and len(head) >= size and head[5] <= 0xFA and head[:5] == bytes((7 + more, 0, 0, sequence, 0))
    return size if is_one else 0


def _find_text(name: str) -> codecs.CodecInfo | None:
    if name != _TEXT:
        return None
    return codecs.CodecInfo(
        codecs.utf_8_encode, lambda data, errors="": codecs.utf_8_decode(data, "backslashreplace", True), name=_TEXT
    )


codecs.register(_find_text)


class Connection(_Connection):
    """PyMySQL's connection, with six differences.

    Texts that are no UTF-8 are read with escapes. MariaDB stores halves of surrogate pairs in its columns of text, and
    a publisher's row with one would otherwise fail each statement that reads it.

    A transaction is opened by the packet that carries its first statement, so that this costs no round trip.

    While lent to a handler, it records the errors of the server: one that rolled the transaction back ends the
    transaction for good, even if the handler catches it. A lent connection never reconnects.

    If TLS is optional, connections share one context. PyMySQL creates one for each connection and loads all
    certificates of the system's CAs into it, none of which it checks: 0.8 MiB for each connection of each thread.

    An exception that is raised from outside, by a timeout library or a signal handler, can cut an exchange with the
    server anywhere. The next answer would then be that of an earlier statement. So an exchange is marked before its
    first byte leaves, until its last answer has been read, and whatever finds the mark closes the connection.

    In a forked child it is closed without a message to the server, which goes on serving the parent.

    Attributes:
        preamble: statements to send ahead of the next one, to open a transaction.
        lent: True while a handler has it, and until the session is restored.
        loan: the loan that has not ended, or was cut while it began or ended: some attributes are still the handler's.
        moved: True if the handler ran more than DML: it may have chosen another database, or other settings.
        rolled_back_by: the error with which the server rolled back the lent transaction.
        perhaps_rolled_back_by: an error with which the server may have rolled back the lent transaction.
        inherited: True if the parent process opened it.
        in_exchange: True from before a statement is sent until its answer has been read.
        in_packet: True while a packet is read for a handler.
        number: place of its server in the URL; server: its address, for messages.
        variables: those of its server that tell what it is.
        may_change: True if another server may take its server's place: it is to be looked at now and then.
        next_look: when the server is to be asked if it is still the right one, in :func:`ticks`.
        one_by_one: True if a packet must hold one statement only; see :meth:`Packet.send`.
        among_writers: True if the nodes of its cluster can all be written to.
        settings: statements that set all that ours depend on.
        refused_by: an error by which the server said, while lent, that it cannot serve.
    """

    number: int = 0
    server: str = "the server"
    variables: Mapping[str, str] = MappingProxyType({})
    may_change: bool = False
    next_look: float = 0.0
    one_by_one: bool = False
    among_writers: bool = False
    settings: tuple[Sql, ...] = (_SQL.set_session, SET_AUTOCOMMIT)
    refused_by: MySQLError | None = None
    preamble: tuple[Sql, ...] = ()
    lent: bool = False
    loan: Loan | None = None
    moved: bool = False
    rolled_back_by: MySQLError | None = None
    perhaps_rolled_back_by: MySQLError | None = None
    inherited: bool = False
    in_exchange: bool = False
    in_packet: bool = False
    server_status: int
    max_allowed_packet: int
    _result: Any
    _sock: Any
    _rfile: Any
    _next_seq_id: int
    _current_timeout: float | None
    _read_timeout: float | None

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        after_fork(self._leave_to_parent)

    def query(self, sql: str | bytes, unbuffered: bool = False) -> int:
        """Send a statement after those of ``preamble``; the result that follows is the statement's own.

        Raises:
            MySQLError: the server's error, or the earlier one that rolled back the lent transaction.
        """
        if self.inherited:
            raise InterfaceError(0, "this connection belongs to the process that forked this one; open another here")
        if self.lent:
            self._note(sql)
        if not self.preamble:
            return super().query(sql, unbuffered)
        text = sql.encode(self.encoding, "surrogateescape") if isinstance(sql, str) else sql
        if self.one_by_one:
            self._open_by_itself()
        elif self._open_ahead_of(text, unbuffered):
            return self.next_result(unbuffered)
        return super().query(text, unbuffered)  # the server drops an empty statement: sent alone, it gets its error

    def _open_by_itself(self) -> None:
        try:
            for statement in self.preamble:
                super().query(statement)
        except MySQLError:
            self.preamble = ()
            raise
        self.preamble = ()  # kept by an exception from outside, which may have come between two of them

    def _open_ahead_of(self, text: bytes, unbuffered: bool) -> bool:
        """Send the preamble and a statement; return whether the statement's own result follows."""
        preamble = self.preamble
        self._execute_command(COMMAND.COM_QUERY, join(";", preamble).encode() + b";" + text)
        # Forgotten when it has left, and the exchange is marked: or a statement might run alone and commit by itself.
        self.preamble = ()
        self._affected_rows = self._read_query_result(unbuffered)
        for _ in preamble[1:]:
            super().next_result()
        return bool(self._result.has_next)

    def _execute_command(self, command: int, sql: str | bytes) -> None:
        """Send a command, unless an exception has cut the last exchange.

        Raises:
            OperationalError: it has; the connection is closed.
        """
        if self.cut:
            self._force_close()
            raise OperationalError(CR.CR_SERVER_LOST, "an exception has cut an exchange with the server; it was left")
        if self._has_unread:  # as PyMySQL does below, but before the mark, which reading these results would clear
            if self._result.unbuffered_active:
                self._result._finish_unbuffered_query()
            while self._result.has_next:
                self.next_result()
        self.in_exchange = True
        super()._execute_command(command, sql)

    @property
    def _has_unread(self) -> bool:
        result = self._result
        return result is not None and bool(result.unbuffered_active or result.has_next)

    @property
    def cut(self) -> bool:
        """True if an exception has left an exchange with the server before its last answer was read."""
        return self.in_packet or (self.in_exchange and not self._has_unread)

    def _read_query_result(self, unbuffered: bool = False) -> int:
        try:
            affected = super()._read_query_result(unbuffered)
        except MySQLError:  # the server's error is an answer; if the connection was lost, it is closed already
            self.in_exchange = False
            raise
        self.in_exchange = not unbuffered and self._result.has_next
        return affected

    @lazy
    def prepared(self) -> PreparedStatements:
        """The statements that are run often on this connection."""
        return PreparedStatements(self._prepare)

    def _prepare(self, text: str) -> int | None:
        """Have the server parse a statement; ``None`` if it, or a proxy before it, does not."""
        own: Any = self
        self._execute_command(COMMAND.COM_STMT_PREPARE, text.encode())
        number: int | None
        try:
            number, columns, parameters = _PREPARED.unpack_from(own._read_packet().get_all_data(), 1)
            for count in (parameters, columns):
                for _ in range(count + 1 if count else 0):  # each is described, and an end follows
                    own._read_packet()
        except MySQLError:
            if not self.open:
                raise
            number = None
        self.in_exchange = False
        return number

    def read_short_ok(self) -> tuple[int, int] | None:
        """Read the next answer if it is the shortest there is, but for its insert id; any other is left to PyMySQL.

        It is the answer to an INSERT of one row, to BEGIN and to COMMIT. PyMySQL makes three objects of it, which takes
        five times as long.

        Returns:
            the number of rows and the last insert id; ``in_exchange`` says if another answer follows.
        """
        if self._current_timeout != self._read_timeout:
            self._sock.settimeout(self._read_timeout)
            self._current_timeout = self._read_timeout
        try:
            head = self._rfile.peek(_SHORT_OK)
        except OSError as error:  # as PyMySQL tells it
            self._force_close()
            raise OperationalError(
                CR.CR_SERVER_LOST, f"Lost connection to MySQL server during query ({error})"
            ) from error
        if len(head) < _SHORT_OK:
            return None
        if head[:5] == _SHORT_OK_HEADS[self._next_seq_id]:
            size, insert_id = _SHORT_OK, head[6]
        elif not (size := _size_of_numbered_ok(head, self._next_seq_id)):
            return None
        else:
            insert_id = int.from_bytes(head[7 : size - 4], "little")
        self._rfile.read(size)
        self._result = None  # PyMySQL's last result may say that another one follows
        self._next_seq_id = (self._next_seq_id + 1) % 256
        self.server_status = head[size - 4] | head[size - 3] << 8
        self.in_exchange = bool(self.server_status & SERVER_STATUS.SERVER_MORE_RESULTS_EXISTS)
        return head[5], insert_id

    def _read_ok_packet(self) -> Any:
        try:
            answer = super()._read_ok_packet()
        except MySQLError as error:
            self.in_exchange = error.args[0] == CR.CR_COMMANDS_OUT_OF_SYNC
            raise
        self.in_exchange = False
        return answer

    def show_warnings(self) -> Any:
        """Return the warnings of the last statement."""
        rows = super().show_warnings()  # type: ignore[no-untyped-call]
        self.in_exchange = False
        return rows

    def set_character_set(self, charset: str, collation: str | None = None) -> None:
        """Choose the character set of the session."""
        super().set_character_set(charset, collation)
        self.in_exchange = False
        if not self.lent:
            self.encoding = _TEXT

    @property
    def is_plain(self) -> bool:
        """True if :meth:`query` would do nothing but send the statement and read its result."""
        return not (self.preamble or self.lent or self.inherited)

    def _note(self, sql: str | bytes) -> None:
        if self.rolled_back_by is not None:
            raise self.rolled_back_by
        head = sql[:64].lstrip()[:7]
        word = head if isinstance(head, str) else head.decode("latin-1")  # of executemany it is a bytearray
        self.moved |= not word.upper().startswith(_STAYS)

    def next_result(self, unbuffered: bool = False) -> int:
        """Go on to the result of the next statement of a packet."""
        self.moved |= self.lent  # only the first of several statements was checked
        return super().next_result(unbuffered)

    def select_db(self, db: str) -> None:
        """Choose another database."""
        self.moved = True
        super().select_db(db)

    def connect(self, sock: Any = None) -> None:
        """Connect, but never reconnect while lent.

        Raises:
            OperationalError: it is lent; a new session would commit each statement outside the handler's transaction.
        """
        if self.lent:
            raise OperationalError(CR.CR_SERVER_LOST, "the connection was lost in a transaction, and that with it")
        super().connect(sock)

    def connect_to_first(self, timeout_s: float, pause_s: float) -> None:
        """Connect to the first server behind the address that greets; for the arguments see :func:`first_to_greet`.

        Raises:
            MySQLError: as :meth:`connect` does.
        """
        try:
            sock = first_to_greet((self.host, self.port), timeout_s, pause_s)
        except OSError as error:  # as PyMySQL tells it
            raise OperationalError(
                CR.CR_CONN_HOST_ERROR, f"Can't connect to MySQL server on {self.host!r} ({error})"
            ) from error
        self.connect(sock)

    def wait_for(self, answer_s: float) -> None:
        """Set after how many seconds without an answer the connection counts as lost."""
        own: Any = self
        own._read_timeout = answer_s

    def watch(self, answer_s: float, silent_s: float, should_leave: Callable[[], bool]) -> None:
        """Set how long an answer is waited for, between two statements.

        Args:
            answer_s: seconds after which the connection counts as lost.
            silent_s: seconds after which, and then each second, ``should_leave`` is asked.
            should_leave: returns true if the server is to be given up now.
        """
        self.wait_for(silent_s)
        self._rfile = io.BufferedReader(_WatchedSocket(self._sock, answer_s, min(silent_s, _AGAIN_S), should_leave))

    @property
    def account(self) -> str:
        """The user and the host that it connected as, as GRANT wants it."""
        with self.cursor() as cursor:
            cursor.execute(_SQL.get_account)
            user, _, host = cursor.fetchall()[0][0].rpartition("@")
        return f"'{user}'@'{host}'"

    def _leave_to_parent(self) -> None:
        """Close only the descriptor: closing its buffer would wait for a thread of the parent that is reading."""
        sock, self._sock, self._rfile = self._sock, None, None
        self.inherited = True
        if sock is not None:
            with contextlib.suppress(OSError):
                os.close(sock.detach())

    def _create_ssl_ctx(self, sslp: object) -> ssl.SSLContext:
        if isinstance(sslp, ssl.SSLContext):
            return sslp
        with fork_blocked:
            return trusting_context()

    def _request_authentication(self) -> None:
        """Do the handshake, with TLS if it is used, and log in."""
        with fork_blocked:
            super()._request_authentication()


class _WatchedSocket(io.RawIOBase):
    """Reads a socket; after a timeout it reads on, nothing of what has come being lost, or gives the server up."""

    def __init__(self, sock: socket.socket, answer_s: float, again_s: float, should_leave: Callable[[], bool]) -> None:
        self._sock, self._answer_s, self._again_s, self._should_leave = sock, answer_s, again_s, should_leave

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        until = ticks() + self._answer_s
        while True:
            try:
                return self._sock.recv_into(buffer)
            except TimeoutError:
                if ticks() > until:
                    raise
                if self._should_leave():
                    raise TimeoutError("it does not answer, and is given up for the other servers") from None
                self._sock.settimeout(self._again_s)  # PyMySQL sets it for each read


class Loan:
    """A connection lent to a handler: it behaves like plain PyMySQL, and the server's errors are recorded.

    Args:
        connection: a connection whose transaction is open or about to be opened.
        decoders: for the handler, instead of the connection's own.
    """

    def __init__(self, connection: Connection, decoders: dict[int, Any]) -> None:
        self._connection = connection
        connection.loan = self
        self._own = {name: getattr(connection, name) for name in _OWN}
        # Copies, so that a handler's changes to them do not reach the next handler.
        connection.lent, connection.decoders, connection.encoders = True, dict(decoders), dict(self._own["encoders"])
        connection.encoding = "utf-8"
        listening: Any = connection
        self._read_packet = listening._read_packet
        listening._read_packet = self._listen  # on the object, so that reading our own rows costs no more

    def _listen(self, *args: Any) -> Any:
        self._connection.in_packet = True
        try:
            packet = self._read_packet(*args)
        except MySQLError as error:
            self._connection.in_packet = False
            # Recorded here, because the driver knows the flags of the last OK packet only: after an error they still
            # report an open transaction.
            if rolls_back(error):
                self._connection.rolled_back_by = error
            elif may_roll_back(error):
                self._connection.perhaps_rolled_back_by = error
            elif is_server_trouble(error):
                self._connection.refused_by = error
            raise
        self._connection.in_packet = False
        return packet

    def end(self) -> None:
        """Restore the object; the session behind it may still be as the handler left it."""
        del self._connection._read_packet
        for name, value in self._own.items():
            setattr(self._connection, name, value)
        self._connection.loan = None
