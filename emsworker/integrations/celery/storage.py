"""Sessions of a result backend or a scheduler, for any number of threads, greenlets and forked children."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from emsworker.extending.database import Database, Session, check_extension, check_version, stream_id, translate
from emsworker.extending.errors import REFUSED, Conflict, ConnectionLost, EmsError, MessageTooLarge, StoreError
from emsworker.extending.processes import forks, until_connected
from emsworker.integrations.celery.extension import EXTENSION
from emsworker.integrations.celery.options import StreamOptions
from emsworker.integrations.celery.poller import ResultPoller, Waiter
from emsworker.integrations.celery.refusals import Refusals, in_task
from emsworker.integrations.celery.store import results
from emsworker.integrations.celery.store.results import StoredValue
from emsworker.integrations.celery.transaction import in_transaction, outside_transaction
from emsworker.integrations.celery.url import StreamUrl
from emsworker.integrations.celery.wakeups import WakeUps

T = TypeVar("T")

_TIMEOUT_S = 30.0
# After these a session is as new. Any other exception may come from outside, as a soft time limit of Celery does, and
# may have cut a packet in two.
_CLEAN = (EmsError, StoreError)


class Storage:
    """The database of results, with a pool of sessions.

    A thread or greenlet has a session only while it uses it: a worker with a thousand greenlets has as many as work at
    the same moment.

    Args:
        url: ``ems+mysql://user:password@host:port/database``, with or without ``ems+``.
        given: ``result_backend_transport_options``; options of the URL override them.

    Attributes:
        budget, together: limits of a result, and of all that a chord gets.
        writer: stores results.
        poller: waits for results.

    Raises:
        ValueError: the URL is malformed.
        ConfigError: an option is wrong.
    """

    def __init__(self, url: str, given: Mapping[str, Any] = MappingProxyType({})) -> None:
        parsed = StreamUrl.parse(url)
        options = StreamOptions.load(parsed.options, given)
        self.budget, self.together = options.budget, options.together
        self._database = Database(parsed.database, options.connect_timeout_s, outlasts_refusal=in_task)
        self._idle: deque[Session] = deque()
        self._brokers: dict[str, bool] = {}
        self._refusals = Refusals()
        self.writer = Writer(self.keep, self.stored)
        self.poller = ResultPoller(self.find)
        self._wake_ups: WakeUps | None = None
        if options.redis_url:
            self._wake_ups = WakeUps(options.redis_url, lambda: self.call(stream_id), self.poller.arrived)

    def call(self, work: Callable[[Session], T]) -> T:
        """Run ``work`` on a session, and again after a lost connection: it must be idempotent.

        Raises:
            StoreUnavailable: the server could not be reached for 30 seconds.
            AccessDenied, TlsError: it has refused the first call.
        """
        return self._retry(work)

    def keep(self, work: Callable[[Session], T]) -> T:
        """:meth:`call` for what a task has returned: a first refusal is outlived, too.

        A child that a worker has just started would lose the result of its first task otherwise.

        Raises:
            StoreUnavailable: the server could not be reached for 30 seconds, or has refused its user for as long.
        """
        return self._retry(work, outlive_first=True)

    def _retry(self, work: Callable[[Session], T], *, outlive_first: bool = False) -> T:
        def attempt() -> T:
            with self._refusals.apart(outlive_first=outlive_first), self._session() as session:
                return work(session)

        return until_connected(attempt, _TIMEOUT_S)

    def check(self) -> None:
        """Use the server once; nothing is said of one that is away.

        Raises:
            AccessDenied, TlsError: it refuses the user, or TLS fails.
            SchemaMissing: ``ems migrate`` has not been run.
            ConfigError: there is no such database.
        """
        with contextlib.suppress(ConnectionLost), self._session() as session:
            check_version(session)
            check_extension(session, EXTENSION)
            results.find(session, [b"?"])  # of its tables, too

    def find(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the values that exist, by key."""
        return self.call(lambda session: results.find(session, keys))

    def stored(self, keys: Iterable[bytes]) -> None:
        """Wake those who wait for results that have been committed."""
        if self._wake_ups is not None:
            self._wake_ups.tell(keys)

    def wait(self, waiter: Waiter, timeout_s: float) -> None:
        """Return when a waiter has values, or after ``timeout_s`` seconds."""
        if self._wake_ups is not None:
            self._wake_ups.listen()
        self.poller.wait(waiter, timeout_s)

    def publish(self, work: Callable[[Session], T], app: Any) -> T:
        """Run ``work`` in a transaction, and again after a conflict or a loss.

        If the application's broker is in the same database, the tasks that ``work`` publishes are part of the
        transaction. Otherwise they are sent before its commit: they may be sent twice, but are not forgotten.

        Raises:
            StoreUnavailable: the server could not be reached for 30 seconds.
        """
        joins = self.is_broker_of(app)

        def attempt() -> T:
            with self._refusals.apart(outlive_first=True), self._session() as session:
                return _publish(session, work, joins)

        return until_connected(attempt, _TIMEOUT_S)

    def is_broker_of(self, app: Any) -> bool:
        """Return whether the messages of an application are in this database, whatever name its URL has for it."""
        with app.connection_for_write() as connection:
            if connection.transport.driver_type != "ems":
                return False
            address = StreamUrl.of_connection(connection).database
        known = self._brokers.get(address)
        if known is None:
            with Database(address, outlasts_refusal=in_task).session() as session:
                there = until_connected(lambda: _id_of(session), _TIMEOUT_S)
            known = self._brokers[address] = there == self.keep(stream_id)
        return known

    @contextlib.contextmanager
    def _session(self) -> Iterator[Session]:
        try:
            session = self._idle.pop()
        except IndexError:
            session = self._database.session(patient=False)
        try:
            yield session
        except _CLEAN:
            raise
        except BaseException:
            session.drop()
            raise
        finally:
            self._idle.append(session)

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()


def _id_of(session: Session) -> str:
    with Refusals().apart(outlive_first=True):
        return stream_id(session)


class _Borrowed:
    """The connection of a transaction, for the transport: it says when it has been committed."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.calls: list[Callable[[], object]] = []

    def cursor(self) -> Any:
        """Return a cursor in the transaction."""
        return self._connection.cursor()

    def on_commit(self, call: Callable[[], object]) -> None:
        """Call ``call`` after the commit."""
        self.calls.append(call)


def _publish(session: Session, work: Callable[[Session], T], joins: bool) -> T:
    try:
        with session.lend() as connection:
            borrowed = _Borrowed(connection)
            with in_transaction(borrowed) if joins else outside_transaction():
                result = work(session)
        if (conflict := session.rolled_back) is not None:
            raise conflict
        packet = session.packet()
        packet.take_back()
        packet.commit_lent()
        packet.send()
    except BaseException as error:
        with contextlib.suppress(ConnectionLost):  # then the server rolls back; the caller is told of `error`
            session.rollback()
        if (meaning := lost(error)) is not None:
            raise meaning from error
        raise
    for call in dict.fromkeys(borrowed.calls):
        call()
    return result


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that it was raised from, or during."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def lost(error: BaseException) -> BaseException | None:
    """Return what an exception, or one behind it, says of a connection or a transaction that is lost, or refused."""
    for meaning in map(translate, chain(error)):
        if isinstance(meaning, REFUSED):
            return ConnectionLost(str(meaning))
        if isinstance(meaning, (ConnectionLost, Conflict)):
            return meaning
    return None


class _Turn:
    """An entry that a thread waits for."""

    def __init__(self, entry: StoredValue) -> None:
        self.entry = entry
        self.is_done = False
        self.error: Exception | None = None


class Writer:
    """Stores results: those of several threads in one statement, each of which waits until its own is committed.

    Args:
        call: runs a function on a session.
        stored: called with the keys that have been committed.
    """

    def __init__(
        self, call: Callable[[Callable[[Session], None]], None], stored: Callable[[Iterable[bytes]], None]
    ) -> None:
        self._call, self._stored = call, stored
        self._start_over()
        forks.after_fork(self._start_over)

    def _start_over(self) -> None:
        self._changed = forks.Condition()
        self._waiting: list[_Turn] = []
        self._is_writing = False

    def put(self, entry: StoredValue) -> None:
        """Store a result and return after its commit.

        Raises:
            MessageTooLarge: the server takes no value of this size.
            StoreUnavailable: the server could not be reached.
        """
        turn = _Turn(entry)
        with self._changed:
            self._waiting.append(turn)
            while self._is_writing and not turn.is_done:
                self._changed.wait()
            if turn.is_done:
                return self._end(turn)
            batch, self._waiting, self._is_writing = self._waiting, [], True
        try:
            self._write(batch)
        finally:
            with self._changed:
                # An exception from outside is this thread's own: the others store theirs without it.
                self._waiting[:0] = [one for one in batch if not one.is_done and one is not turn]
                self._is_writing = False
                self._changed.notify_all()
        return self._end(turn)

    def _write(self, batch: list[_Turn]) -> None:
        entries = [one.entry for one in batch]
        try:
            self._call(lambda session: results.put(session, entries))
        except MessageTooLarge:
            for one in batch:  # one of them is to blame, and the others are stored
                self._write_alone(one)
        except _CLEAN as error:
            for one in batch:  # told at once: each of them alone would wait for the server as long again
                one.error = error
        for one in batch:
            one.is_done = True
        self._stored([one.entry.key for one in batch if one.error is None])

    def _write_alone(self, turn: _Turn) -> None:
        try:
            self._call(lambda session: results.put(session, [turn.entry]))
        except _CLEAN as error:
            turn.error = error  # raised in the thread that waits for it
        turn.is_done = True

    def _end(self, turn: _Turn) -> None:
        if turn.error is not None:
            raise turn.error


_lock = forks.Lock()
_storages: dict[tuple[str, StreamOptions], Storage] = {}


def storage_of(url: str, given: Mapping[str, Any] = MappingProxyType({})) -> Storage:
    """Return the storage of a URL: one for all threads, each of which has a result backend of its own.

    Args:
        given: ``result_backend_transport_options``.

    Raises:
        ValueError: the URL is malformed.
        ConfigError: an option is wrong.
    """
    key = (url, StreamOptions.load(StreamUrl.parse(url).options, given))
    with _lock:
        if key not in _storages:
            _storages[key] = Storage(url, given)
        return _storages[key]
