"""Calls, results, progress and flows by HTTP, on a worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from emsworker.flows.extension import EXTENSION
from emsworker.http.openapi import document
from emsworker.local import LocalDatabase
from emsworker.store.engine.database import Database
from emsworker.store.engine.schema import migrate
from tests.http.calling import Server, serving
from tests.http.shop import app, order
from tests.process.stream import Stream, open_stream
from tests.support.waiting import until

CALLS, RESULTS = "/v1/topics/default/groups/workers/tasks", "/v1/topics/default/results"


@pytest.fixture(scope="module")
def stream(server: LocalDatabase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stream]:
    """A stream with the tables of flows, and a worker."""
    with open_stream(server, tmp_path_factory.mktemp("stream")) as stream:
        with Database(stream.url).session() as session:
            migrate(session, [EXTENSION])
        stream.worker("tests.http.shop:app", threads=3)
        yield stream


@pytest.fixture(scope="module")
def site(stream: Stream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(stream, tmp_path_factory.mktemp("http"), "--streams", "2") as site:
        yield site


@pytest.fixture
def flow_id(stream: Stream) -> Iterator[str]:
    """The id of a flow that waits for a signal."""
    before = app.settings.url
    app.reconfigure(url=stream.url)
    flow = order.start(id="order/1 ?")
    until(lambda: flow.state == "waiting", 30, stream.logs())
    yield flow.id
    app.close()
    app.reconfigure(url=before)


def test_a_task_is_called_and_its_result_is_followed(site: Server, tmp_path: Path) -> None:
    call = site.ok(f"{CALLS}/add", {"args": [1], "kwargs": {"b": 2}})
    assert site.events(f"{RESULTS}/events?id={call['id']}")[-1] == (
        "result", "-end", {"id": call["id"], "status": "done", "value": 3},
    )  # fmt: skip
    assert site.ask("GET", f"{RESULTS}?id={call['id']}", role="reader").json["value"] == 3
    again = site.ask("GET", f"{RESULTS}/events?id={call['id']}", **{"Last-Event-ID": "-end"})
    assert again.status == 204, "a browser does not come again"
    failed = site.ok(f"{CALLS}/refuse", {})["id"]
    assert site.events(f"{RESULTS}/events?id={failed}")[-1][2]["error"] == {"type": "ValueError", "message": "no"}


def test_progress_comes_before_the_result(site: Server, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    id = site.ok(f"{CALLS}/slow", {"args": [str(gate)]})["id"]
    connection = site.open()
    connection.request("GET", f"{RESULTS}/events?id={id}", headers=site.headers("reader"))
    answer = connection.getresponse()
    assert answer.getheader("content-type", "").startswith("text/event-stream")
    lines = iter(answer.readline, b"")
    assert next(line for line in lines if line.startswith(b"event")) == b"event: progress\n"
    assert json.loads(next(lines).partition(b": ")[2]) == {"fraction": 0.25, "text": "waits"}
    looking = site.ask("GET", f"{RESULTS}?id={id}", role="reader").json
    assert looking["status"] == "pending" and looking["progress"]["text"] == "waits"
    gate.touch()
    assert next(line for line in lines if line.startswith(b"event")) == b"event: result\n"
    assert list(lines)[1].endswith(b'"value": "done"}\n')
    connection.close()


def test_a_flow_is_followed_and_signalled(site: Server, flow_id: str) -> None:
    quoted = "order%2F1%20%3F"
    flows = "/v1/topics/default/flows"
    assert site.ask("GET", f"{flows}?id={quoted}").json == {"id": flow_id, "state": "waiting"}
    other = site.post("/v1/topics/elsewhere/signals", {"flow": flow_id, "name": "paid"})
    assert other.status == 404, "it runs on another topic"
    assert site.post("/v1/topics/default/signals", {"flow": "none", "name": "paid"}).status == 404
    site.ok("/v1/topics/default/signals", {"flow": flow_id, "name": "paid", "value": {"by": "card"}})
    until(lambda: site.ask("GET", f"{flows}?id={quoted}").json["state"] == "done", 30, "it has ended")
    events = site.events(f"{flows}/events?id={quoted}")
    assert [(name, data) for name, _, data in events] == [
        ("value", "began"),
        ("end", {"id": flow_id, "state": "done", "value": {"paid": {"by": "card"}}}),
    ]
    assert site.events(f"{flows}/events?id={quoted}", **{"Last-Event-ID": events[0][1]}) == events[1:]
    late = site.post("/v1/topics/default/signals", {"flow": flow_id, "name": "paid"})
    assert (late.status, late.code) == (409, "flow_refuses")
    assert "/v1/topics/{topic}/signals" in document()["paths"]
