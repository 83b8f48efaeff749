"""Web applications as the documentation shows them: every answered request has sent, once, and no neighbour waits."""

import json
import statistics
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.machine import machine_s
from tests.support.streams import Stream
from tests.support.web import ask, served, write_files

REQUESTS = 1000
_CALLS = (
    "SELECT m.body FROM ems_message m JOIN ems_topic t ON t.id = m.topic_id AND m.`offset` > 0 WHERE t.name = 'default'"
)
_PRODUCERS = "SELECT COUNT(DISTINCT producer_id) FROM ems_message WHERE `offset` > 0"
_NEIGHBOUR = """
from web import web


@web.get("/neighbour")
async def neighbour() -> dict[str, int]:
    return {"n": 1}
"""


def _place(port: int, number: int) -> str:
    status, body = ask(port, "/orders", {"customer": f"c{number}", "prices": [number, 0.5]})
    assert status == 202, body
    return str(body["id"])


def _sent(stream: Stream) -> Counter[int]:
    orders = [json.loads(body)[0][0] for (body,) in stream.rows(_CALLS)]  # a model's fields, or the prices alone
    return Counter(int((order["prices"] if isinstance(order, dict) else order)[0]) for order in orders)


@pytest.mark.slow
def test_a_thousand_requests_of_fastapi_and_a_neighbour(stream: Stream, tmp_path: Path) -> None:
    write_files("how-to/fastapi.md", tmp_path)
    (tmp_path / "serving.py").write_text(_NEIGHBOUR)
    late: list[float] = []
    done = threading.Event()

    def visit(port: int) -> None:
        while not done.is_set():
            begin = machine_s()
            assert ask(port, "/neighbour") == (200, {"n": 1})
            late.append(machine_s() - begin)
            time.sleep(0.002)

    with (
        served(["uvicorn", "serving:web", "--port", "PORT", "--log-level", "warning"], tmp_path, stream.url) as port,
        ThreadPoolExecutor(17) as clients,
    ):
        _place(port, 0)
        with closing(stream.other()) as other, other.cursor() as cursor:
            cursor.execute("LOCK TABLES ems_message WRITE")
            waiting = [clients.submit(_place, port, number) for number in range(1, 17)]
            for _ in range(50):  # while every send waits
                assert ask(port, "/neighbour") == (200, {"n": 1})
            assert not any(one.done() for one in waiting)
        ids = {one.result() for one in waiting}
        visitor = clients.submit(visit, port)
        ids |= set(clients.map(lambda number: _place(port, number), range(17, REQUESTS)))
        done.set()
        visitor.result()
        assert ask(port, "/visits?page=home", {}) == (202, None)
    assert len(ids) == REQUESTS - 1
    p99 = statistics.quantiles(late, n=100)[98]
    print(f"p99 of {len(late)} requests of a neighbour: {p99 * 1000:.0f} ms, the longest {max(late) * 1000:.0f} ms")
    assert p99 < 0.5
    assert _sent(stream) == Counter(range(REQUESTS))


@pytest.mark.slow
def test_a_thousand_requests_of_flask_with_two_processes(stream: Stream, tmp_path: Path) -> None:
    write_files("how-to/flask.md", tmp_path)
    loaded = "shop:create_app()"
    command = ["gunicorn", "--preload", "--workers", "2", "--threads", "4", "--bind", "127.0.0.1:PORT", loaded]
    with served(command, tmp_path, stream.url) as port, ThreadPoolExecutor(8) as clients:
        ids = set(clients.map(lambda number: _place(port, number), range(REQUESTS)))
    assert len(ids) == REQUESTS
    assert _sent(stream) == Counter(range(REQUESTS))
    assert stream.value(_PRODUCERS) == 2, "each process is a producer of its own"
