"""A stand-in for the server of Sentry that takes events."""

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Ingest:
    """What the server has got.

    Attributes:
        dsn: its address, as clients are told it.
        events: in order.
        answering: while it is not set, requests are taken and not answered.
        asked: the number of requests.
    """

    def __init__(self) -> None:
        self.dsn = ""
        self.events: list[dict[str, Any]] = []
        self.answering = threading.Event()
        self.answering.set()
        self.asked = 0

    def of(self, task: str) -> list[dict[str, Any]]:
        """The events with the tag of a task."""
        return [event for event in self.events if event.get("tags", {}).get("task") == task]


def _events_in(envelope: bytes) -> Iterator[dict[str, Any]]:
    """Yield the events of an envelope: a header, then items with headers of their own, one below the other."""
    _, _, rest = envelope.partition(b"\n")
    while rest.strip():
        line, _, rest = rest.partition(b"\n")
        header = json.loads(line)
        length = header.get("length", len(rest.partition(b"\n")[0]))
        payload, rest = rest[:length], rest[length:].removeprefix(b"\n")
        if header["type"] == "event":
            yield json.loads(payload)


@contextmanager
def ingest() -> Iterator[Ingest]:
    """A running server."""
    made = Ingest()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.asked += 1
            made.answering.wait(60)
            plain = gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
            made.events += _events_in(plain)
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    made.dsn = f"http://key@127.0.0.1:{server.server_port}/1"
    try:
        yield made
    finally:
        made.answering.set()
        server.shutdown()
        thread.join()
        server.server_close()
