"""A connection of the store: its settings, packets of statements, transactions that are retried on conflict."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from pymysql.constants import COMMAND, SERVER_STATUS
from pymysql.converters import conversions
from pymysql.err import MySQLError

from emsworker.core.errors import (
    REFUSED,
    Conflict,
    ConnectionLost,
    DiskFull,
    MessageTooLarge,
    SoftTimeLimitExceeded,
    TransactionGone,
)
from emsworker.core.process.clock import ticks
from emsworker.core.url import DatabaseUrl
from emsworker.store.engine import full_disk
from emsworker.store.engine.connection import SET_AUTOCOMMIT, SET_RESOURCES, Connection, Loan
from emsworker.store.engine.errors import translate
from emsworker.store.engine.nodes import ServerSelector, nodes_of
from emsworker.store.engine.prepared import FORGOTTEN
from emsworker.store.engine.sql import Args, Sql, Statements, fill, identifier, insertion, join, literals

T = TypeVar("T")

_SQL = Statements(__name__)
_CONFLICT_TRIES, _CONFLICT_S, _CONFLICT_PAUSE_S = 12, 20.0, 1.0
_IDLE_S = 1.0
_PACKET_SLACK = 1024  # for statements sent ahead, and the protocol's own bytes
_FULL_DECODERS = {kind: reader for kind, reader in conversions.items() if isinstance(kind, int)}


def never() -> bool:
    """Return false: by default no refusal is outlasted."""
    return False


class Result(NamedTuple):
    """Result of one statement of a packet.

    Attributes:
        rows: the rows, empty for statements that return none.
        affected: number of rows that matched (not: changed; the sessions set CLIENT.FOUND_ROWS on purpose).
        insert_id: the value of LAST_INSERT_ID(expr).
    """

    rows: tuple[tuple[Any, ...], ...]
    affected: int
    insert_id: int


@dataclass
class Packet:
    """Statements sent to the server together to save round trips, which dominate the cost (docs/design).

    A packet that is too large for the
    server (max_allowed_packet) is sent in several parts: in the same transaction, with the commit in the last part.
    """

    session: Session

    def __post_init__(self) -> None:
        self._parts: list[Sql] = []
        self._ends_loan = False

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def only_statement(self) -> Sql | None:
        """Its statement, if there is just one."""
        return self._parts[0] if len(self._parts) == 1 else None

    def add(self, statement: Sql, args: Args | None = None) -> int:
        """Append one statement; returns the index of its result."""
        self._parts.append(self.session.mogrify(statement, args))
        return len(self._parts) - 1

    def add_all(self, statements: Sequence[Sql], args: Args) -> None:
        """Append statements that share their values, which are escaped once."""
        values = self.session.literals(args)
        self._parts += [fill(statement, values) for statement in statements]

    def insert_many(self, head: Sql, row: Sql, values: Iterable[Args], end: Sql | None = None) -> None:
        """Append the INSERT of a row for each mapping of values; nothing if there is none.

        Args:
            head: ``INSERT ... VALUES``.
            row: the template of a row.
            end: ``ON DUPLICATE KEY ...``.
        """
        self.add_rows(head, self.session.mogrify_all(row, values), end)

    def add_rows(self, head: Sql, rows: Sequence[Sql], end: Sql | None = None) -> None:
        """Append an INSERT of rows, as several if one is too large for the server; a row is never split."""
        for part in _within(self.session.most_bytes - len(head) - len(end or ""), rows):
            self._parts.append(insertion(head, part, end))

    def assert_one_matched(self) -> None:
        """End the packet with AssertionBroken unless the previous statement matched exactly one row."""
        self.add(_SQL.assert_one_matched)

    def begin(self) -> None:
        """Open a transaction."""
        self.session.leave_unfinished()
        self.add(_SQL.begin)

    def commit(self) -> None:
        """Commit the transaction; statements after it commit by themselves."""
        self.add(_SQL.commit)

    def take_back(self) -> None:
        """End the packet with TransactionGone if the transaction is not the one that was lent; restore the session.

        Call it before appending anything that depends on the session's settings, which a handler may have changed.
        """
        # The settings first: in a handler's character set the name of a missing savepoint could not be read.
        self._parts += [*self.session.statements_of_return(), _SQL.prove_transaction]

    def commit_lent(self) -> None:
        self._parts += [_SQL.commit, SET_AUTOCOMMIT]
        self._ends_loan = True

    def send(self) -> list[Result]:
        """Run the statements in order; the first error ends the packet, and its transaction is rolled back.

        Raises:
            Conflict, AssertionBroken, Duplicate, TransactionGone: everything was rolled back.
            MessageTooLarge: the server takes no statement of that size; everything was rolled back.
            ConnectionLost: it is not known what was committed.
        """
        results: list[Result] = []
        # In a Galera cluster a transaction that is aborted between two statements of a packet is rolled back without
        # an error, and the rest of the packet runs alone: there each statement hears of it.
        most_bytes = 0 if self.session.sends_one_by_one else self.session.most_bytes
        send = self.session.send
        try:
            for part in _within(most_bytes, self._parts):
                results += send(join(";\n", part))
                send = self.session.send_on
        except BaseException:
            self.session.leave_unfinished()  # if one from outside came between two parts, nobody has rolled back
            raise
        if self._ends_loan:
            self.session.returned()
        return results


def _within(most_bytes: int, texts: Sequence[Sql]) -> Iterator[Sequence[Sql]]:
    """Yield runs of texts that stay below a size when they are joined; a larger text stands alone."""
    if sum(map(len, texts)) + 2 * len(texts) <= most_bytes:  # the usual case
        if texts:
            yield texts
        return
    part: list[Sql] = []
    size = 0
    for text in texts:
        if part and size + len(text) + 2 > most_bytes:
            yield part
            part, size = [], 0
        part.append(text)
        size += len(text) + 2
    yield part


class Session:
    """Connection for one thread at a time; connects at its first use and after a loss.

    Args:
        url: the server, or several.
        nodes: what opens its connections, shared by sessions of the same URL.
        patient: retry conflicts; otherwise raise at once, for callers that retry by themselves.
        answer_s: seconds after which a server that does not answer counts as lost, if the URL says no less.
        outlasts_refusal: return whether the calling thread must outlast a refusal, such as of a password that is being
            changed: it is a lost connection there, so that what waits for the server in an outage waits for it as well.
    """

    def __init__(
        self,
        url: DatabaseUrl,
        nodes: ServerSelector,
        patient: bool = True,
        answer_s: float | None = None,
        outlasts_refusal: Callable[[], bool] = never,
    ) -> None:
        self._url = url
        self._nodes = nodes
        self._patient = patient
        self._answer_s = answer_s
        self._outlasts_refusal = outlasts_refusal
        self._connection: Connection | None = None
        self._pid = 0
        self._used_at = 0.0
        self._works = False  # in a transaction of transaction()
        # Called with the result of each transaction before its commit: what it writes is committed with it, or not.
        self.before_commit: Callable[[object], None] | None = None
        # Called after each packet has left, and before its answer is read; it must not raise.
        self.when_sent: Callable[[], None] | None = None

    @property
    def database(self) -> str:
        """The name of the stream's database on its server."""
        return self._url.database

    def sibling(self, answer_s: float | None = None) -> Session:
        """Create another session of the database, which the caller closes.

        Args:
            answer_s: seconds after which a server that does not answer counts as lost, whatever the URL says.
        """
        if answer_s is None:
            return Session(self._url, self._nodes)
        url = replace(self._url, options={**self._url.options, "read_timeout_s": str(answer_s)})
        return Session(url, nodes_of(url))

    def packet(self) -> Packet:
        """Return a new, empty packet."""
        return Packet(self)

    def execute(self, statement: Sql, args: Args | None = None) -> Result:
        """Run one statement."""
        return self.send(self.mogrify(statement, args))[0]

    def change(self, statement: Sql, args: Args | None = None) -> int:
        """Run one statement that changes rows as a transaction, retried on conflict; returns how many rows matched.

        Within :meth:`transaction` it is part of that: a conflict rolls all of it back, so all is tried again.
        """
        if self._works:
            return self.execute(statement, args).affected
        if self.before_commit is not None:
            return self.transaction(lambda session: session.execute(statement, args).affected)
        return self.retry_on_conflict(lambda: self.execute(statement, args).affected)

    def rows(self, statement: Sql, args: Args | None = None) -> tuple[tuple[Any, ...], ...]:
        """Run one statement and return its rows."""
        return self.execute(statement, args).rows

    def named_rows(self, statement: Sql) -> list[dict[str, Any]]:
        """Run one statement whose columns depend on the server, and return its rows by their names."""
        rows = self.rows(statement)
        connection: Any = self._connection
        names = [one.name for one in connection._result.fields]
        return [dict(zip(names, row, strict=True)) for row in rows]

    def mogrify(self, statement: Sql, args: Args | None) -> Sql:
        """Insert escaped values into a statement.

        Raises:
            InvalidName: a text has no UTF-8 form; the open transaction was rolled back.
        """
        return fill(statement, self.literals(args)) if args else statement

    def mogrify_all(self, row: Sql, values: Iterable[Args]) -> list[Sql]:
        """Return a row for each mapping of values.

        Raises:
            InvalidName: a text has no UTF-8 form; the open transaction was rolled back.
        """
        with self._mapped_errors():
            return [fill(row, literals(one)) for one in values]

    def literals(self, args: Args) -> dict[str, Sql]:
        """Return values as SQL.

        Raises:
            InvalidName: a text has no UTF-8 form; the open transaction was rolled back.
        """
        with self._mapped_errors():
            return literals(args)

    def send(self, sql: Sql) -> list[Result]:
        """Run one or more statements that are already escaped, in one packet; any error rolls back.

        Raises:
            MessageTooLarge: the server takes no packet of that size.
        """
        return self._send(sql, stay=False)

    def send_on(self, sql: Sql) -> list[Result]:
        """Do the same on the connection of the statements before, whose variables are needed.

        It is not left for another server now, even if that is the one to use by now.
        """
        return self._send(sql, stay=True)

    def run_often(self, statement: Sql, args: Args) -> Result:
        """Run one statement that is run again and again: prepared, once its connection has run it some times.

        Args:
            args: its values: whole numbers, bytes, and ``None`` instead of bytes.
        """
        try:
            connection = self._ready(stay=False)
            prepared = connection.prepared.find(statement, args) if connection.is_plain else None
            payload = b"" if prepared is None else prepared.payload(args)
            if 0 < len(payload) <= connection.max_allowed_packet - _PACKET_SLACK:
                try:
                    return self._exchange(connection, COMMAND.COM_STMT_EXECUTE, payload)[0]
                except MySQLError as error:  # as behind a proxy that has changed its connection
                    if error.args[0] not in FORGOTTEN:
                        raise
                    connection.prepared.give_up(statement)
        except BaseException as error:
            if (meaning := self._failed(error)) is error:
                raise
            raise meaning from error
        return self.execute(statement, args)

    def _ready(self, *, stay: bool) -> Any:
        connection = self._connection
        if connection is None or (connection.may_change and not stay) or self._pid != os.getpid():
            return self._open()
        return connection

    def _exchange(self, connection: Any, command: int, payload: bytes) -> list[Result]:
        """Send a command without PyMySQL's frame, and ours, around it, and read its results."""
        self._used_at = ticks()
        connection._execute_command(command, payload)
        if self.when_sent is not None:
            self.when_sent()
        return _read_results(connection)

    def _send(self, sql: Sql, *, stay: bool) -> list[Result]:
        try:  # not in a context manager, which would take a tenth of the time of a short statement
            connection = self._ready(stay=stay)
            if len(sql) > connection.max_allowed_packet - _PACKET_SLACK:
                raise self._too_large(sql)
            if connection.is_plain:
                return self._exchange(connection, COMMAND.COM_QUERY, sql.encode())
            self._used_at = ticks()
            connection.query(sql)
            results = [_result(connection)]
            while connection._result.has_next:
                connection.next_result()
                results.append(_result(connection))
            return results
        except BaseException as error:
            if (meaning := self._failed(error)) is error:
                raise
            raise meaning from error

    @property
    def most_bytes(self) -> int:
        """The largest packet that the server takes: it answers a larger one by closing the connection.

        Raises:
            ConnectionLost: there is no connection.
        """
        return self._opened().max_allowed_packet - _PACKET_SLACK

    @property
    def sends_one_by_one(self) -> bool:
        """True if the server must not get several statements of a transaction at once.

        Raises:
            ConnectionLost: there is no connection.
        """
        return self._opened().one_by_one

    @property
    def among_writers(self) -> bool:
        """True if other servers are written to at the same time: a row that is locked here is not locked there.

        Raises:
            ConnectionLost: there is no connection.
        """
        return self._opened().among_writers

    def _opened(self) -> Connection:
        connection = self._connection
        if connection is None:
            with self._mapped_errors():
                connection = self._open()
        return connection

    def _too_large(self, sql: Sql) -> MessageTooLarge:
        # Raised here, because the server's answer looks like a lost connection, which is retried for ever.
        return MessageTooLarge(
            f"a statement of {len(sql)} bytes; the server takes {self.most_bytes} "
            "(max_allowed_packet): raise that, or send a reference instead of the data"
        )

    @contextlib.contextmanager
    def _mapped_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if (meaning := self._failed(error)) is error:
                raise
            raise meaning from error

    def _failed(self, error: BaseException) -> BaseException:
        """Roll back, or drop the connection; return the error to raise."""
        if isinstance(error, SoftTimeLimitExceeded) or not isinstance(error, Exception):
            self.drop()  # raised from outside, by a time limit or a signal handler; it may have cut a packet in two
            return error
        meaning = self._meaning(error)
        if isinstance(meaning, (ConnectionLost, TransactionGone)):
            self.drop()
        else:
            self._rollback_quietly()
        return meaning

    def _meaning(self, error: Exception) -> BaseException:
        meaning, connection = translate(error, self._url), self._connection
        if isinstance(meaning, REFUSED) and self._outlasts_refusal():
            meaning = ConnectionLost(str(meaning))
        if isinstance(meaning, ConnectionLost) and connection is not None:
            meaning = type(meaning)(f"{connection.server}: {meaning}")
        if isinstance(meaning, DiskFull):
            full_disk.note(self._url.servers, str(meaning))
        if isinstance(meaning, TransactionGone) and connection is not None and connection.perhaps_rolled_back_by:
            return Conflict(str(connection.perhaps_rolled_back_by.args[-1]))
        return meaning

    def transaction(self, work: Callable[[Session], T]) -> T:
        """Run ``work`` between BEGIN and COMMIT; on a conflict everything is rolled back and retried.

        Raises:
            Conflict: every attempt met a conflict.
            ConnectionLost: it is not known whether the last COMMIT took effect.
        """

        def attempt() -> T:
            self.begin()
            self._works = True
            try:
                result = work(self)
            finally:
                self._works = False
            if self.before_commit is not None:
                self.before_commit(result)
            self.commit()
            return result

        return self.retry_on_conflict(attempt)

    def retry_on_conflict(self, attempt: Callable[[], T], until: float = math.inf) -> T:
        """Call ``attempt`` until it meets no conflict, with growing random pauses; only this method retries conflicts.

        It gives up only after a number of tries and also a time: if transactions are long, the first pauses are too
        short for the others to end.

        Args:
            until: a time of :func:`ticks` after which it is not retried.
        """
        patience_ends = ticks() + _CONFLICT_S
        for tries in itertools.count(1):
            try:
                return attempt()
            except Conflict:
                if not self._patient or ticks() > until or (tries >= _CONFLICT_TRIES and ticks() > patience_ends):
                    raise
                time.sleep(random.random() * min(0.002 * 2**tries, _CONFLICT_PAUSE_S))
            except BaseException:
                self._rollback_quietly()
                raise
        raise AssertionError("unreachable")

    @property
    def full(self) -> str:
        """The server's words if its disk is full, as far as this process has seen; else empty."""
        return full_disk.full(self._url.servers)

    @property
    def full_s(self) -> float:
        """Seconds for which it has been full; 0 if it has room."""
        return full_disk.full_s(self._url.servers)

    def note_room(self) -> None:
        """Note that the server has had room for a write of some size."""
        full_disk.note_room(self._url.servers)

    def begin(self) -> None:
        """Open a transaction, in the packet of the first statement that follows."""
        self.leave_unfinished()
        with self._mapped_errors():
            self._open().preamble = (_SQL.begin,)

    def leave_unfinished(self) -> None:
        """Drop a connection that an exception from outside has left amid an exchange, a transaction or a loan.

        The next statement would get an answer of the last one, and a BEGIN would commit what was to be rolled back.
        """
        connection = self._connection
        if connection is not None and (
            connection.cut
            or connection.loan
            or connection.lent
            or connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS
        ):
            self.drop()

    def commit(self) -> None:
        """Commit the open transaction."""
        self.send(_SQL.commit)

    def rollback(self) -> None:
        """Roll back; the settings of a session that was lent are restored."""
        with self._mapped_errors():
            if self._connection is not None:
                self._undo(self._connection)

    def check_idle(self) -> None:
        """Connect; ping the server if the connection has been idle.

        Raises:
            ConnectionLost: the connection is dead; it was not in use, so that another one may replace it.
        """
        with self._mapped_errors():
            connection = self._open()
            if ticks() - self._used_at > _IDLE_S:
                connection.ping()
                self._used_at = ticks()

    # -- lent transactions ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def lend(self) -> Iterator[Connection]:
        """Open a transaction for a handler, and yield the PyMySQL connection with the driver's usual behaviour.

        Changes that the handler makes to the session end with the loan: :meth:`Packet.take_back` and :meth:`rollback`
        restore all settings that our statements depend on. The packet that commits the transaction also proves that it
        is still the one that began. docs/discussions/sessions.md lists what a handler may do.

        Raises:
            ConnectionLost: there is no connection.
        """
        self.leave_unfinished()
        with self._mapped_errors():
            connection = self._open()
        lasting = (_SQL.unset_idle_timeout,) if connection.one_by_one else ()  # a handler may take as long as it likes
        connection.preamble = (*lasting, _SQL.unset_autocommit, _SQL.mark_transaction)
        loan = Loan(connection, _FULL_DECODERS)
        try:
            yield connection
        finally:
            loan.end()

    @property
    def rolled_back(self) -> Conflict | None:
        """Conflict by which the server rolled back the lent transaction, even if the handler caught that error."""
        connection = self._connection
        if connection is None or connection.rolled_back_by is None:
            return None
        return Conflict(str(connection.rolled_back_by.args[-1]))

    @property
    def refused(self) -> ConnectionLost | None:
        """The server's answer to a statement of the lent transaction that it cannot serve, even if that was caught."""
        connection = self._connection
        if connection is None or connection.refused_by is None:
            return None
        refusal = translate(connection.refused_by, self._url)
        refusal.__cause__ = connection.refused_by
        return refusal if isinstance(refusal, ConnectionLost) else None

    def statements_of_return(self) -> list[Sql]:
        """Return the statements that restore the session's settings inside the transaction."""
        connection = self._connection
        if connection is None:
            return []
        inside = [one for one in connection.settings if one is not SET_AUTOCOMMIT]
        return [*inside, *([SET_RESOURCES, self._use] if connection.moved else [])]

    def returned(self) -> None:
        """Record that the session is as it was before it was lent."""
        connection = self._connection
        if connection is not None:
            connection.lent = connection.moved = False
            connection.rolled_back_by = connection.perhaps_rolled_back_by = connection.refused_by = None

    @property
    def _use(self) -> Sql:
        return fill(_SQL.use_database, {"database": identifier(self._url.database)})

    def _undo(self, connection: Connection) -> None:
        if connection.loan is not None:  # an exception has cut its beginning or its end
            self.drop()
            return
        never_begun, connection.preamble = bool(connection.preamble), ()
        connection.rolled_back_by = None  # or the next statement would raise it
        if not connection.lent:
            connection.rollback()
        elif not never_begun:
            ours = (*connection.settings, SET_RESOURCES, self._use)
            connection.query(join(";", (_SQL.rollback, _SQL.unlock_tables, _SQL.release_locks, *ours)))
            while connection._result.has_next:
                connection.next_result()
        self.returned()  # at the end: interrupted before that it is still lent, and dropped at its next use

    def _rollback_quietly(self) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            self._undo(connection)
        except (MySQLError, OSError):  # the connection is unusable; the server rolls back by itself
            self.drop()
        except BaseException:  # from outside: the caller must see it
            self.drop()
            raise

    @property
    def connected(self) -> bool:
        """True if there is a connection of this process (it may have died unnoticed)."""
        return self._connection is not None and self._pid == os.getpid()

    @property
    def alive(self) -> bool:
        """True if there is a connection that is not known to have died."""
        return self._connection is not None and self._connection.open

    @property
    def in_transaction(self) -> bool:
        """True if a transaction is open, as the server last reported, or about to be opened, or lent."""
        connection = self._connection
        if connection is None or not self.connected:
            return False
        begun = connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS
        return bool(connection.preamble or connection.lent or begun)

    def _open(self) -> Connection:
        if self._connection is not None and self._pid != os.getpid():
            self.drop()  # inherited over a fork: its socket belongs to the parent
        connection = self._connection
        may_change = connection is not None and connection.may_change and not self.in_transaction
        if connection is not None and may_change and not self._nodes.still_serves(connection):
            self.drop()  # a session that only reads would not notice that its server was demoted
        if self._connection is None:
            self._connection = self._nodes.open(self._answer_s)
            self._pid = os.getpid()
        return self._connection

    def close(self) -> None:
        """Close the connection; one that was inherited over a fork is only forgotten."""
        connection, self._connection = self._connection, None
        if connection is not None and self._pid == os.getpid():
            with contextlib.suppress(Exception):
                connection.close()

    def drop(self) -> None:
        """Drop the connection without sending anything on its socket."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection._force_close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read_results(connection: Any) -> list[Result]:
    """Read the results of a packet that nothing but us has a part in."""
    results: list[Result] = []
    while True:
        if (numbers := connection.read_short_ok()) is not None:
            results.append(Result((), *numbers))
        else:
            connection._read_query_result()
            results.append(_result(connection))
        if not connection.in_exchange:
            return results


def _result(connection: Any) -> Result:
    """Read the result without a cursor, which takes a third of the time of a short statement."""
    result = connection._result
    return Result(result.rows or (), result.affected_rows, result.insert_id or 0)
