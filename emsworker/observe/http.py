"""A small HTTP server for probes and metrics: GET only, bounded in connections and time, without authentication."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from emsworker.core.errors import EmsError
from emsworker.core.process import forks
from emsworker.core.url import redact

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
_ADDRESS = re.compile(r"(?:(?P<host>\[[0-9a-fA-F:.]+\]|[^:\[\]/\s]*):)?(?P<port>\d{1,5})")
_REQUEST_S = 5.0
_MOST_CONNECTIONS = 64
_TURN_S = 0.1
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
        """Return an answer with a value as JSON."""
        return cls(status, json.dumps(value).encode() + b"\n", JSON)


@dataclass(frozen=True)
class HttpRequest:
    """A request: the parts of its path after the first, and its query."""

    rest: tuple[str, ...]
    query: Mapping[str, str]


Route = Callable[[HttpRequest], Answer]


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``[HOST]:PORT`` or ``PORT``; the host is 127.0.0.1 unless it is given.

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
        """Its address."""
        return f"http://{self._host}:{self._server.server_address[1]}"

    def __enter__(self) -> HttpServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingMixIn, HTTPServer):
    """Server with a thread for each connection; connections above a limit are closed at once."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = _MOST_CONNECTIONS

    def __init__(self, *args: Any) -> None:
        self._lock = forks.Lock()
        self._open = 0
        super().__init__(*args)

    def server_bind(self) -> None:
        """Bind, without the look-up of the host's name that HTTPServer does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if there are not too many."""
        with self._lock:
            full = self._open >= _MOST_CONNECTIONS
            self._open += not full
        if full:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, in the thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open -= 1

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error of the connection: its client is gone, or too slow."""
        log.debug("a request of %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """One connection with one request."""

    own_routes: Mapping[str, Route] = {}
    timeout = _REQUEST_S
    server_version, sys_version = "ems", ""

    def do_GET(self) -> None:
        """Answer."""
        answer = self._answer()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_HEAD = do_GET

    def _answer(self) -> Answer:
        parts = urlsplit(self.path)
        first, *rest = (unquote(part) for part in parts.path.strip("/").split("/"))
        route = self.own_routes.get(first)
        if route is None:
            known = " ".join(f"/{name}" for name in self.own_routes)
            return Answer(404, f"there is no /{first}; there are {known}\n".encode())
        try:
            return route(HttpRequest(tuple(rest), dict(parse_qsl(parts.query))))
        except EmsError as error:
            return Answer(503, f"{redact(str(error))}\n".encode())
        except Exception:
            log.exception("the request %s failed", parts.path)
            return Answer(500, b"the request failed; the log tells why\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Log requests at level debug only."""
        log.debug(format, *args)
