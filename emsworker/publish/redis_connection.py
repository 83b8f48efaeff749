"""Redis: pooled clients, and a connection of our own, on which a round trip takes two thirds of a client's time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from emsworker.core.counted import counted
from emsworker.core.errors import StoreUnavailable
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.url import redact

_TIMEOUT_S = 0.5
_AWAY_S, _HANGS_S = 1.0, 5.0
_MOST_UNANSWERED = 256


def connect(url: str) -> redis.Redis:
    """Return a client that gives up within half a second, so that a Redis that hangs counts as one that is down."""
    return client_of(url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S)


def client_of(url: str, **options: Any) -> redis.Redis:
    """Return a client; for ``rediss://`` it checks the server's certificate and name, whatever the driver's default."""
    if url.startswith("rediss://") and "ssl_cert_reqs=none" not in urlsplit(url).query:  # nor in a password
        options = {"ssl_cert_reqs": "required", "ssl_check_hostname": True, **options}
    # A server may have closed an idle connection, so once more; but nothing that has timed out is tried again.
    retry = Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,))
    return _Client.from_url(url, **{"retry": retry, **options})


class LeftAlone(redis.ConnectionError):
    """A Redis that failed a moment ago is not asked now."""


class CircuitBreaker:
    """Leaves a Redis alone for a while after it has failed: one that hangs costs one time-out, and not one a call."""

    def __init__(self) -> None:
        self._until = 0.0

    @property
    def is_open(self) -> bool:
        """True while it is left alone."""
        return ticks() < self._until

    def check(self) -> None:
        """Refuse a call while it is left alone.

        Raises:
            LeftAlone: it is.
        """
        if self.is_open:
            raise LeftAlone("Redis has not answered in time, and is left alone for some seconds")

    def note(self, error: redis.RedisError) -> None:
        """Leave it alone from now on: longer after a time-out, because the next one would cost half a second again."""
        if not isinstance(error, (LeftAlone, redis.exceptions.NoScriptError)):
            self._until = ticks() + (_HANGS_S if isinstance(error, redis.TimeoutError) else _AWAY_S)


@contextmanager
def unavailable(what: str) -> Iterator[None]:
    """Raise StoreUnavailable for the errors of a Redis that keeps something.

    Args:
        what: it keeps.
    """
    try:
        yield
    except redis.RedisError as error:
        raise StoreUnavailable(f"Redis, which keeps the {what}, is unavailable: {redact(str(error))}") from error


class _Client(redis.Redis):
    """A pooled client that drops a connection on which an exception from outside has cut an exchange.

    redis-py gives it back to its pool between a command and its answer, which the pool's next user would get.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._breaker = CircuitBreaker()

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command, unless one has timed out a moment ago."""
        self._breaker.check()
        try:
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        except redis.TimeoutError as error:
            self._breaker.note(error)
            raise

    def _send_command_parse_response(self, conn: Any, command_name: str, *args: Any, **options: Any) -> Any:
        try:
            return super()._send_command_parse_response(conn, command_name, *args, **options)  # type: ignore[no-untyped-call]
        except redis.ResponseError:
            raise  # a complete answer: the connection remains usable
        except BaseException:
            conn.disconnect()
            raise


class RedisConnection:
    """A thread-safe connection; a forked child gets one of its own. No command that is asked is ever sent twice.

    Its methods raise ``redis.RedisError`` if Redis is down, or refuses.

    Args:
        url: the server.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._mutex = forks.Lock()
        self._connection: Any = None
        self._pid = 0
        self.unanswered = 0
        self.breaker = CircuitBreaker()

    def ask(self, *command: Any) -> Any:
        """Send a command and wait for its answer."""
        with self._mutex:
            self.breaker.check()  # with the mutex: those who waited for a time-out do not wait for one of their own
            try:
                return self._send(command, wait=True)
            except redis.RedisError as error:
                self.breaker.note(error)
                raise

    def tell(self, *command: Any) -> None:
        """Send a command without waiting for its answer, which is read after the next command.

        It is sent again over another connection if this one turns out to have been closed.
        """
        with self._mutex:
            self.breaker.check()
            try:
                if self._connection is not None and self._pid == os.getpid() and self._told(self._connection, command):
                    return
                self._send(command, wait=False)
            except redis.RedisError as error:
                self.breaker.note(error)
                raise

    def _told(self, connection: Any, command: tuple[Any, ...]) -> bool:
        """Send a command, and then read what earlier ones have left, which the one that is told need not wait for.

        Returns:
            False if the connection is gone, with whatever it would have answered: the command is sent over another one.
        """
        try:
            connection.send_command(*command)
            self.unanswered += 1
            self._settled(connection)
        except redis.ConnectionError:
            # A server closes idle connections, which is no trouble; the next one tells if there is.
            self._drop()
            return False
        except redis.ResponseError:
            raise
        except BaseException:
            self._drop()
            raise
        return True

    def _send(self, command: tuple[Any, ...], *, wait: bool) -> Any:
        try:
            connection = self._ready()
            connection.send_command(*command)
            self.unanswered += 1
            answer = None
            while wait and self.unanswered:  # the last answer is that of this command
                answer = self._read(connection)
            return answer
        except redis.ResponseError:
            raise  # a complete answer: the connection remains usable
        except BaseException:
            self._drop()
            raise

    def _ready(self) -> Any:
        """Return a connection that looks open: a server may have closed one that was idle for long."""
        if self._connection is not None and self._pid == os.getpid():
            try:
                return self._settled(self._connection)
            except redis.ConnectionError:
                self._drop()
        with forks.fork_blocked:
            self._connection = connect(self._url).connection_pool.make_connection()
            self._connection.connect()
        self._pid, self.unanswered = os.getpid(), 0
        return self._connection

    def _settled(self, connection: Any) -> Any:
        while connection.can_read(0):
            self._read(connection)
        if self.unanswered > _MOST_UNANSWERED:
            raise redis.TimeoutError(f"it has not answered {counted(self.unanswered, 'time')}")
        return connection

    def _read(self, connection: Any) -> Any:
        self.unanswered -= 1
        return connection.read_response()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()
        self._connection, self.unanswered = None, 0
