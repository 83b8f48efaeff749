"""The server of probes and metrics, asked by clients that are slow, many or silent."""

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from emsworker.observe import http as served
from emsworker.observe.http import Answer, HttpRequest, HttpServer
from tests.support.waiting import until

MANY = 3 * served._MOST_CONNECTIONS


class Routes:
    """A probe that answers, and work that hangs until it is let go."""

    def __init__(self) -> None:
        self.go, self.began = threading.Event(), threading.Semaphore(0)

    def probe(self, request: HttpRequest) -> Answer:
        return Answer(200, b"ok")

    def hang(self, request: HttpRequest) -> Answer:
        self.began.release()
        assert self.go.wait(60)
        return Answer(200, b"done")


@pytest.fixture
def routes() -> Iterator[Routes]:
    made = Routes()
    yield made
    made.go.set()


@pytest.fixture
def server(routes: Routes) -> Iterator[HttpServer]:
    with HttpServer("127.0.0.1", 0, {"livez": routes.probe, "scale": routes.hang}) as made:
        yield made


def get(server: HttpServer, path: str) -> int:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def connect(server: HttpServer) -> socket.socket:
    url = urlsplit(server.url)
    return socket.create_connection((url.hostname, url.port), timeout=30)


def test_connections_that_send_no_request_keep_no_probe_out(server: HttpServer) -> None:
    with ExitStack() as stack:
        slow = [stack.enter_context(connect(server)) for _ in range(MANY)]
        for one in slow[-served._MOST_CONNECTIONS :]:
            one.sendall(b"GET /livez HTT")
        assert [get(server, "/livez") for _ in range(20)] == [200] * 20
        assert slow[0].recv(1) == b"", "the slowest made room"


def test_a_request_has_a_deadline_however_often_a_byte_comes(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "_REQUEST_S", 0.3)
    with connect(server) as slow:
        slow.sendall(b"GET /livez HTTP/1.0\r\n")
        slow.settimeout(0.05)

        def closed() -> bool:
            try:
                slow.sendall(b"x")  # a byte more, well within the time of one read
                return slow.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        until(closed, 20, "it is closed")


def test_answers_that_hang_keep_no_probe_out(server: HttpServer, routes: Routes) -> None:
    found: list[int] = []
    hanging = [
        threading.Thread(target=lambda: found.append(get(server, "/scale"))) for _ in range(served._MOST_WORKING)
    ]
    for one in hanging:
        one.start()
    for _ in hanging:
        assert routes.began.acquire(timeout=30)
    assert get(server, "/scale") == 503 and get(server, "/livez") == 200
    routes.go.set()
    for one in hanging:
        one.join(30)
    assert found == [200] * len(hanging)
    assert get(server, "/scale") == 200
