"""Redis: pooled clients, and a connection of our own, on which a round trip takes two thirds of a client's time."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

import redis

from emsworker.core.counted import counted
from emsworker.core.process import forks

_TIMEOUT_S = 0.5
_MOST_UNANSWERED = 256


def connect(url: str) -> redis.Redis:
    """Return a client that gives up within half a second, so that a Redis that hangs counts as one that is down."""
    return client_of(url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S)


def client_of(url: str, **options: Any) -> redis.Redis:
    """Return a client; for ``rediss://`` it checks the server's certificate and name, whatever the driver's default."""
    if url.startswith("rediss://") and "ssl_cert_reqs=none" not in urlsplit(url).query:  # nor in a password
        options = {"ssl_cert_reqs": "required", "ssl_check_hostname": True, **options}
    return _Client.from_url(url, **options)


class _Client(redis.Redis):
    """A pooled client that drops a connection on which an exception from outside has cut an exchange.

    redis-py gives it back to its pool between a command and its answer, which the pool's next user would get.
    """

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

    def ask(self, *command: Any) -> Any:
        """Send a command and wait for its answer."""
        with self._mutex:
            return self._send(command, wait=True)

    def tell(self, *command: Any) -> None:
        """Send a command without waiting for its answer, which is read after the next command.

        It is sent again over another connection if this one turns out to have been closed.
        """
        with self._mutex:
            if self._connection is not None and self._pid == os.getpid() and self._told(self._connection, command):
                return
            self._send(command, wait=False)

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
        with forks.undivided:
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
