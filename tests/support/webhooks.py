"""A local server that takes what is posted to it, and hangs, fails or answers."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """What a server has got.

    Attributes:
        got: the bodies, in order; also those that were answered with an error.
        answers: status codes, one for each request; after them 204.
        authorizations: the headers of that name, in order.
        posts: path, headers and raw body of each, in order.
        pings: the paths of requests by GET.
    """

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.answers: list[int] = []
        self.authorizations: list[str | None] = []
        self.posts: list[tuple[str, dict[str, str], str]] = []
        self.pings: list[str] = []
        self.hanging = threading.Event()
        self.let_go = threading.Event()
        self.url = ""

    @property
    def events(self) -> list[tuple[str, str]]:
        """Rule and event of each."""
        return [(body["rule"], body["event"]) for body in self.got]


@contextmanager
def receiver(*, hangs: bool = False) -> Iterator[Receiver]:
    """A running server; ``hangs``: it takes the request and does not answer until the end."""
    made = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.authorizations.append(self.headers["Authorization"])
            made.posts.append((self.path, dict(self.headers), body.decode()))
            made.got.append(json.loads(body))
            if hangs:
                made.hanging.set()
                made.let_go.wait(60)
            self.send_response(made.answers.pop(0) if made.answers else 204)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def do_GET(self) -> None:
            made.pings.append(self.path)
            self.send_response(made.answers.pop(0) if made.answers else 204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_port}/alarms"
    try:
        yield made
    finally:
        made.let_go.set()
        server.shutdown()
        thread.join()
        server.server_close()
