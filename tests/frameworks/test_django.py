"""A Django project on PyMySQL with two web processes: what its transactions send is there, once, and nothing is refused."""

import http.client
import json
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from emsworker.beat.relay import Relay
from emsworker.core.config import Settings
from tests.support.streams import Stream
from tests.support.waiting import until

ORDERS = 500  # by each of two ways


def _free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


def _get(port: int, path: str) -> tuple[int, dict[str, Any]]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as client:
        client.request("GET", path)
        answer = client.getresponse()
        body = answer.read()
        return answer.status, json.loads(body) if answer.status == 200 else {}


@contextmanager
def _gunicorn(stream: Stream, log: Path) -> Iterator[int]:
    port = _free_port()
    command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "2", "--threads", "4", "--timeout", "120"]
    command += ["--bind", f"127.0.0.1:{port}", "tests.frameworks.shop:application"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env={**os.environ, "EMS_URL": stream.url, "HOME": str(log.parent)}, stdout=out, stderr=out
        )

        def serves() -> bool:
            assert process.poll() is None, log.read_text()[-3000:]
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        try:
            until(serves, 60, "gunicorn serves")
            yield port
        finally:
            process.terminate()
            process.wait(60)


@pytest.mark.slow
def test_a_thousand_sends_of_two_web_processes(stream: Stream, tmp_path: Path) -> None:
    stream.rows("CREATE TABLE orders (n INT PRIMARY KEY) ENGINE=InnoDB")
    log = tmp_path / "log"
    with _gunicorn(stream, log) as port, ThreadPoolExecutor(8) as clients:
        paths = [f"/{('on_commit', 'atomic')[n % 2]}/{n}" for n in range(2 * ORDERS)]
        paths += [f"/rolled_back/{n}" for n in range(10_000, 10_020)]
        answers = list(clients.map(lambda path: _get(port, path), paths))
    refused = [path for path, (status, _) in zip(paths, answers, strict=True) if status != 200]
    assert refused == [], log.read_text()[-5000:]
    assert len({body["process"] for _, body in answers}) == 2, "both took part"
    relay = Relay()
    until(
        lambda: relay(stream.session, Settings()) and not stream.value("SELECT COUNT(*) FROM ems_outbox"), 20, "moved"
    )
    assert stream.value("SELECT COUNT(*) FROM orders") == 2 * ORDERS
    found = Counter(
        (topic, int(body))
        for topic, body in stream.rows(
            "SELECT t.name, m.body FROM ems_message m JOIN ems_topic t ON t.id = m.topic_id "
            "WHERE m.kind = 'message' AND t.name <> 'started'"
        )
    )
    assert found == Counter((("on_commit", "atomic")[n % 2], n) for n in range(2 * ORDERS))
    ids = {body["id"] for _, body in answers if "id" in body}
    assert len(ids) == 2 * ORDERS
    producers = {row[0] for row in stream.rows("SELECT DISTINCT producer_id FROM ems_message WHERE kind = 'message'")}
    assert len(producers) == 3, "each process is a producer of its own"
