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


def exchange(server: HttpServer, request: bytes) -> list[bytes]:
    """The answers to what is sent over one connection, until the server closes it."""
    said = b""
    with connect(server) as connection:
        connection.sendall(request)
        while data := connection.recv(65536):
            said += data
    return said.split(b"HTTP/1.0 ")[1:]


INNER = b"GET /scale HTTP/1.1\r\nHost: x\r\n\r\n"
SMUGGLED = {
    "two requests": b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n" + INNER,
    "a body": b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(INNER) + INNER,
    "two lengths": b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(INNER) + INNER,
    "a list of lengths": b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 0, 5\r\n\r\n" + INNER,
    "a strange length": b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: +0\r\n\r\n" + INNER,
    "chunks": b"GET /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + INNER,
    "a length and chunks": b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + INNER,
    "chunks, hidden": b"GET /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + INNER,
    "a folded header": b"GET /livez HTTP/1.1\r\nHost: x\r\nX: 1\r\n Transfer-Encoding: chunked\r\n\r\n" + INNER,
    "a folded length": b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n 34\r\n\r\n" + INNER,
    "bare line feeds": b"GET /livez HTTP/1.1\nHost: x\nContent-Length: 34\n\n" + INNER,
    "a bare carriage return": b"GET /livez HTTP/1.1\r\nHost: x\rTransfer-Encoding: chunked\r\n\r\n" + INNER,
    "a nul": b"GET /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: \0chunked\r\n\r\n" + INNER,
}  # fmt: skip


@pytest.mark.parametrize("request_", SMUGGLED.values(), ids=SMUGGLED)
def test_no_second_request_is_read_whatever_a_proxy_before_it_would_see(
    server: HttpServer, routes: Routes, request_: bytes
) -> None:
    """One connection, one request, one answer: nothing that is left over is taken for another request."""
    answers = exchange(server, request_)
    assert len(answers) == 1 and answers[0][:3] in (b"200", b"400")
    assert not routes.began.acquire(blocking=False), "the request inside was run"


@pytest.mark.parametrize(
    "name",
    [
        "a body",
        "two lengths",
        "a list of lengths",
        "a strange length",
        "chunks",
        "a length and chunks",
        "a folded length",
        "bare line feeds",
    ],
)
def test_a_request_with_a_body_is_refused(server: HttpServer, name: str) -> None:
    (answer,) = exchange(server, SMUGGLED[name])
    assert answer.startswith(b"400") and b"has no body" in answer


def test_an_empty_body_is_none(server: HttpServer) -> None:
    (answer,) = exchange(server, b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    assert answer.startswith(b"200")


@pytest.mark.parametrize("target", ["http://[::1", "http://[x]/livez"])
def test_a_target_that_is_no_url_is_answered(server: HttpServer, target: str) -> None:
    with connect(server) as client:
        client.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answer = client.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.0 400 ") and b"no URL" in answer
