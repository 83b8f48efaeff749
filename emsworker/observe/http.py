"""A small HTTP server for probes and metrics: GET only, bounded in connections and time, without authentication."""

from __future__ import annotations

import errno
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from emsworker.core.errors import EmsError
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.url import redact

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
_ADDRESS = re.compile(r"(?:(?P<host>\[[0-9a-fA-F:.]+\]|[^:\[\]/\s]*):)?(?P<port>\d{1,5})")
_REQUEST_S = 5.0  # for a request to be sent, and for its answer to be taken
_MOST_CONNECTIONS = 64
_MOST_WORKING = 16
_TURN_S = 0.1
_PAUSE_S = 0.5
_CLOSING_S = 0.02  # until the thread of a connection that was cut has closed it
OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of `accept` that leave the connection waiting, and the listener readable."""
PROBES = ("livez", "readyz", "startupz")
TEXT, JSON = "text/plain; charset=utf-8", "application/json"
METRICS = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Answer:
    """An answer to a request."""

    status: int
    body: bytes
    kind: str = TEXT

    @classmethod
    def of_json(cls, value: Any, status: int = 200) -> Answer:
        return cls(status, json.dumps(value).encode() + b"\n", JSON)


@dataclass(frozen=True)
class HttpRequest:
    """A request: the parts of its path after the first, and its query."""

    rest: tuple[str, ...]
    query: Mapping[str, str]


Route = Callable[[HttpRequest], Answer]


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``[HOST:]PORT`` or ``:PORT``; the host is 127.0.0.1 unless it is given.

    Raises:
        ValueError: it is not an address.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise ValueError(f"{text!r} is not an address to listen at; write PORT or HOST:PORT, like 9000 or 0.0.0.0:9000")
    return (match["host"] or LOOPBACK).strip("[]"), int(match["port"])


class HttpServer:
    """An HTTP server in threads of its own, from ``with`` to its end; it is bound when it is made.

    Args:
        host, port: where it listens; port 0 for any free one.
        routes: by the first part of the path.

    Raises:
        OSError: it cannot listen there.
    """

    def __init__(self, host: str, port: int, routes: Mapping[str, Route]) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET

        class Handler(_Handler):
            own_routes = routes

        class Server(_Server):
            address_family = family

        self._server = Server((host, port), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": _TURN_S}, name="ems-http", daemon=True
        )
        self._host = f"[{host}]" if ":" in host else host

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._server.server_address[1]}"

    def __enter__(self) -> HttpServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingMixIn, HTTPServer):
    """Server with a thread for each connection, within limits of time and number.

    A connection that has not sent its request in time is closed, however often it sends a byte. At the limit of
    connections a new one takes the place of that which has been sending its request for longest, so that no number of
    slow clients keeps a probe out.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = _MOST_CONNECTIONS

    def __init__(self, *args: Any) -> None:
        self._lock = forks.Lock()
        self._sending: dict[Any, float] = {}  # the time at which a connection's request must be there, oldest first
        self._open = 0
        self._working = 0
        super().__init__(*args)

    def server_bind(self) -> None:
        """Bind, without the look-up of the host's name that HTTPServer does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; if there is no descriptor for it, cut one that sends nothing, or pause.

        The pause is there because the next turn would begin at once.
        """
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in OUT_OF_RESOURCES:
                with self._lock:
                    cut = self._cut_slowest()
                if not cut:
                    log.warning("no connection is accepted for %g s: %s", _PAUSE_S, error)
                time.sleep(_CLOSING_S if cut else _PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, unless too many are being answered."""
        with self._lock:
            full = self._open >= _MOST_CONNECTIONS
            if full and self._cut_slowest():
                full = False
            if not full:
                self._open += 1
                self._sending[request] = ticks() + _REQUEST_S
        if full:
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._forget(request)
            raise

    def _cut_slowest(self) -> bool:
        """Cut the connection that has been sending its request for longest, or return false; the lock is held."""
        slowest = next(iter(self._sending), None)
        if slowest is None:
            return False
        del self._sending[slowest]
        _cut(slowest)
        return True

    def service_actions(self) -> None:
        """Close the connections whose requests are overdue; the loop of the server calls it at each turn."""
        with self._lock:
            for request in [one for one, until in self._sending.items() if until < ticks()]:
                del self._sending[request]
                _cut(request)

    def begin_answer(self, request: Any) -> None:
        """Note that the request of a connection is there."""
        with self._lock:
            self._sending.pop(request, None)

    def begin_work(self) -> bool:
        """Count one more answer that takes work; false if there are too many."""
        with self._lock:
            free = self._working < _MOST_WORKING
            self._working += free
            return free

    def end_work(self) -> None:
        """Count one less."""
        with self._lock:
            self._working -= 1

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, in the thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def _forget(self, request: Any) -> None:
        with self._lock:
            self._sending.pop(request, None)
            self._open -= 1

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error of the connection: its client is gone, or too slow."""
        log.debug("a request of %s failed", client_address, exc_info=True)


def _cut(connection: socket.socket) -> None:
    """End the reads of the thread that waits for a connection; the thread closes it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """One connection with one request."""

    own_routes: Mapping[str, Route] = {}
    timeout = _REQUEST_S
    server_version, sys_version = "ems", ""

    server: _Server

    def do_GET(self) -> None:
        """Answer."""
        self.server.begin_answer(self.connection)
        answer = self._answer() if self._has_no_body() else Answer(400, b"a request here has no body\n")
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_HEAD = do_GET

    def _has_no_body(self) -> bool:
        """False if a proxy before this server could see another end of the request than this server does."""
        lengths = self.headers.get_all("Content-Length", [])
        return "Transfer-Encoding" not in self.headers and lengths in ([], ["0"])

    def _answer(self) -> Answer:
        try:
            parts = urlsplit(self.path)
        except ValueError as error:  # brackets that hold no address
            return Answer(400, f"the target of the request is no URL: {error}\n".encode())
        first, *rest = (unquote(part) for part in parts.path.strip("/").split("/"))
        route = self.own_routes.get(first)
        if route is None:
            known = " ".join(f"/{name}" for name in self.own_routes)
            return Answer(404, f"there is no /{first}; there are {known}\n".encode())
        # Probes ask nothing but this process; what asks a database or children must not use up all connections.
        works = first not in PROBES
        if works and not self.server.begin_work():
            return Answer(503, f"{_MOST_WORKING} requests are being answered; ask again later\n".encode())
        try:
            return route(HttpRequest(tuple(rest), dict(parse_qsl(parts.query))))
        except EmsError as error:
            return Answer(503, f"{redact(str(error))}\n".encode())
        except Exception:
            log.exception("the request %s failed", parts.path)
            return Answer(500, b"the request failed; the log tells why\n")
        finally:
            if works:
                self.server.end_work()

    def log_message(self, format: str, *args: Any) -> None:
        """Log requests at level debug only."""
        log.debug(format, *args)
