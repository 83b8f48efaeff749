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


def test_the_dashboard_pauses_while_descriptors_are_short(ems: Ems, many: ExitStack) -> None:
    with ems.running("web", "--port", "0") as web:
        port = port_of(web)
        resource.prlimit(web.process.pid, resource.RLIMIT_NOFILE, (64, 64))
        admitted = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        admitted.connect()
        connect(port, 100, many)
        until(lambda: web.err.read_text().count(_PAUSED) >= 2, 30, "it pauses, and tries again")
        status, page = get(admitted, "/groups")
        assert status == 200, "pages have descriptors of their own"
        (style,) = re.findall(r'href="(/static/app[^"]+css[^"]*)"', page)
        assert get(admitted, style)[0] == 200
        many.close()
        assert get(http.client.HTTPConnection("127.0.0.1", port, timeout=60), "/")[0] == 200
        assert web.stop() == 0
        log = web.err.read_text()
    assert "Traceback" not in log and "Error" not in log.replace("OSError", ""), log
    assert all(_PAUSED in line or "only reads" in line for line in log.splitlines()), log


def test_probes_pause_while_descriptors_are_short(ems: Ems, many: ExitStack) -> None:
    with ems.running("monitoring", "serve", "0") as serve:
        port = port_of(serve)
        resource.prlimit(serve.process.pid, resource.RLIMIT_NOFILE, (24, 24))
        connect(port, 60, many)
        until(lambda: _PAUSED in serve.err.read_text(), 30, "it pauses")
        many.close()
        assert get(http.client.HTTPConnection("127.0.0.1", port, timeout=60), "/livez")[0] == 200
        assert serve.stop() == 0
        lines = serve.err.read_text().splitlines()
    assert all(_PAUSED in line for line in lines), lines


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
