"""``ems web`` and the server of probes without a free descriptor, and a client that leaves: a line at most, and they go on."""

import http.client
import re
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.commands import Ems, Running
from tests.support.streams import Stream
from tests.support.waiting import until

_PAUSED = "no connection is accepted for "


@pytest.fixture
def ems(stream: Stream, tmp_path: Path) -> Ems:
    return Ems({"EMS_URL": stream.url}, tmp_path)


def port_of(running: Running) -> int:
    found = until(lambda: re.findall(r"http://[^:]+:(\d+)/", running.out.read_text()), 60, "it tells its address")
    return int(found[0])


@pytest.fixture
def many() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def connect(port: int, times: int, many: ExitStack) -> None:
    for _ in range(times):
        many.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))


def get(client: http.client.HTTPConnection, path: str) -> tuple[int, str]:
    client.request("GET", path)
    answer = client.getresponse()
    return answer.status, answer.read().decode()


def test_the_dashboard_closes_silent_connections_while_descriptors_are_short(ems: Ems, many: ExitStack) -> None:
    with ems.running("web", "--port", "0") as web:
        port = port_of(web)
        resource.prlimit(web.process.pid, resource.RLIMIT_NOFILE, (64, 64))
        connect(port, 100, many)
        admitted = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        status, page = get(admitted, "/groups")
        assert status == 200, "a silent connection has made room"
        (style,) = re.findall(r'href="(/static/app[^"]+css[^"]*)"', page)
        assert get(admitted, style)[0] == 200
        assert web.stop() == 0
        log = web.err.read_text()
    assert "Traceback" not in log and log.count(_PAUSED) <= 5, log  # before those accepted are known to be silent


def test_the_dashboard_pauses_while_answers_have_all_descriptors(ems: Ems, stream: Stream, many: ExitStack) -> None:
    with ems.running("web", "--port", "0") as web:
        port = port_of(web)
        resource.prlimit(web.process.pid, resource.RLIMIT_NOFILE, (64, 64))
        stream.rows("LOCK TABLES ems_topic WRITE")
        asking = [many.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)) for _ in range(60)]
        for one in asking:
            one.sendall(b"GET /groups HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        until(lambda: web.err.read_text().count(_PAUSED) >= 2, 30, "it pauses, and tries again")
        stream.rows("UNLOCK TABLES")
        assert all(one.recv(15).startswith(b"HTTP/1.1 ") for one in asking), "each is answered in the end"
        assert web.stop() == 0
        log = web.err.read_text()
    assert "Traceback" not in log and "Error" not in log.replace("OSError", ""), log


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\nX: ", b"POST /do/pause HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n"]
)
def test_a_request_of_the_dashboard_has_a_deadline_however_often_a_byte_comes(ems: Ems, sent: bytes) -> None:
    with ems.running("web", "--port", "0") as web:
        with socket.create_connection(("127.0.0.1", port_of(web)), timeout=1) as slow:
            slow.sendall(sent)
            until(lambda: _is_closed(slow, b"x" if sent else b""), 60, "it is closed")
        assert web.stop() == 0
        assert "Traceback" not in web.err.read_text()


def _is_closed(connection: socket.socket, byte: bytes) -> bool:
    """Send a byte; return whether the other side has ended the connection."""
    try:
        connection.sendall(byte)
        while connection.recv(1000):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def test_probes_are_answered_while_silent_connections_have_all_descriptors(ems: Ems, many: ExitStack) -> None:
    with ems.running("monitoring", "serve", "0") as serve:
        port = port_of(serve)
        resource.prlimit(serve.process.pid, resource.RLIMIT_NOFILE, (24, 24))
        connect(port, 60, many)
        assert get(http.client.HTTPConnection("127.0.0.1", port, timeout=4), "/livez")[0] == 200
        assert serve.stop() == 0
        assert "Traceback" not in serve.err.read_text()


def test_a_client_that_leaves_in_the_middle_of_a_form_is_no_error(ems: Ems) -> None:
    with ems.running("web", "--port", "0") as web:
        port = port_of(web)
        with socket.create_connection(("127.0.0.1", port), timeout=30) as leaving:
            kind = "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\nExpect: 100-continue"
            leaving.sendall(f"POST /do/pause HTTP/1.1\r\nHost: localhost\r\n{kind}\r\n\r\n".encode())
            assert b"100 Continue" in leaving.recv(1000), "the form is being read"
        assert get(http.client.HTTPConnection("127.0.0.1", port, timeout=60), "/")[0] == 200
        assert web.stop() == 0
        log = web.err.read_text()
    assert "Traceback" not in log and "Exception" not in log, log
