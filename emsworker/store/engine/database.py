"""A database: sessions for threads, and calls that survive a lost connection."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

from emsworker.core.process.reconnect import until_connected
from emsworker.core.url import DatabaseUrl
from emsworker.store.engine import full_disk
from emsworker.store.engine.nodes import nodes_of
from emsworker.store.engine.session import Session, never

T = TypeVar("T")


class Database:
    """The database that holds the stream.

    Args:
        url: ``mysql://user:password@host:port/database``.
        connect_timeout_s: seconds that one attempt to connect may take.
        call_timeout_s: seconds for which :meth:`call` tries.
        only_reads: any member of a replication group will do.
        outlasts_refusal: see :class:`Session`.
    """

    def __init__(
        self,
        url: str,
        connect_timeout_s: float = 10.0,
        call_timeout_s: float = 30.0,
        *,
        only_reads: bool = False,
        outlasts_refusal: Callable[[], bool] = never,
    ) -> None:
        self._url = DatabaseUrl.parse(url)
        self._nodes = nodes_of(self._url, connect_timeout_s, only_reads=only_reads)
        self._call_timeout_s = call_timeout_s
        self._outlasts_refusal = outlasts_refusal
        self._local: Any = threading.local()

    @property
    def name(self) -> str:
        """The database's own name on its server."""
        return self._url.database

    @property
    def servers(self) -> str:
        """The addresses of the server or the servers, without user and password."""
        listening = ", ".join(f"{host}:{port}" for host, port in self._url.servers)
        return self._url.options.get("unix_socket", listening)

    @property
    def full(self) -> str:
        """The server's words if its disk is full, as far as this process has seen; else empty."""
        return full_disk.full(self._url.servers)

    def session(self, patient: bool = True, answer_s: float | None = None) -> Session:
        """Create a session for one thread, which the caller closes; for the arguments see :class:`Session`."""
        return Session(self._url, self._nodes, patient, answer_s, self._outlasts_refusal)

    def thread_session(self) -> Session:
        """The calling thread's own session, kept for its next call."""
        session = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = self.session()
        return session

    def with_one_session(self) -> Database:
        """Return the database with one session for all threads; they take turns, as those that drive an iterator."""
        shared = copy.copy(self)
        shared._local = SimpleNamespace()
        return shared

    def call(self, work: Callable[[Session], T], timeout_s: float | None = None) -> T:
        """Run ``work`` on this thread's session, and again after a lost connection: it must be idempotent.

        Args:
            timeout_s: seconds for which to try.

        Raises:
            StoreUnavailable: the server could not be reached in that time.
        """
        session = self.thread_session()
        return until_connected(lambda: work(session), self._call_timeout_s if timeout_s is None else timeout_s)
