"""What flows emit, as server-sent events of the dashboard."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from emsworker import Ems
from emsworker.flows.rows import CANCELLED
from emsworker.local import LocalDatabase
from emsworker.web import Visitor, ems_web, ems_wsgi, site
from tests.flows import shop as flows
from tests.process.stream import Stream
from tests.support.roles import users
from tests.support.waiting import until


@pytest.fixture
def client(stream: Stream, server: LocalDatabase, shop: Ems) -> Iterator[Any]:
    """Makes clients of the dashboard, which reads as a reader."""
    with users(server, stream.url) as make:
        url = make("reader")

        def client(level: Any = "reader", **options: Any) -> TestClient:
            app = ems_web(url, access=lambda request: Visitor("ann", level) if level else None, **options)
            return TestClient(app, "http://localhost", follow_redirects=False)

        yield client


def _events(text: str) -> list[tuple[str | None, str | None, Any]]:
    """The events of an answer: type, id and data."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith((":", "retry")))
        if fields:
            found.append((fields.get("event"), fields.get("id"), json.loads(fields["data"])))
    return found


def test_the_values_of_a_flow_that_has_ended_come_with_its_state(client: Any, stream: Stream) -> None:
    stream.worker("tests.flows.shop:app")
    flow = flows.telling.start(3, id="a/b")
    assert flow.get(60) == 3
    reader = client()
    answer = reader.get("/flows/values/a/b")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store" and answer.text.startswith("retry: 1000\n\n")
    numbers = [number for _, number, _ in _events(answer.text)]
    assert [data for _, _, data in _events(answer.text)] == [{"n": 0}, {"n": 1}, {"n": 2}, {"state": "done"}]
    assert _events(answer.text)[-1][:2] == ("end", f"{numbers[2]}.end")
    rest = reader.get("/flows/values/a/b", headers={"last-event-id": numbers[1]})
    assert [data for _, _, data in _events(rest.text)] == [{"n": 2}, {"state": "done"}]
    assert _events(reader.get(f"/flows/values/a/b?after={numbers[2]}").text) == [
        ("end", f"{numbers[2]}.end", {"state": "done"})
    ]
    assert reader.get("/flows/values/a/b", headers={"last-event-id": numbers[3]}).status_code == 204


def test_a_stream_follows_a_flow_until_its_end(client: Any, stream: Stream, shop: Ems) -> None:
    stream.worker("tests.flows.shop:app")
    flow = flows.telling_on.start(id="f")
    got: list[str] = []
    texts = client()

    def follow() -> None:
        got.append(texts.get("/flows/values/f").text)

    thread = threading.Thread(target=follow)
    thread.start()
    until(lambda: flow.state == "waiting", 30, stream.logs())
    shop.signal("f", "go")
    thread.join(60)
    assert [data for _, _, data in _events(got[0])] == ["before", "after", {"state": "done"}]


def test_a_stream_ends_after_some_time_and_is_taken_up_again(
    client: Any, stream: Stream, shop: Ems, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = flows.waits.start(id="f")
    monkeypatch.setattr(site, "_DEADLINE_S", 1.5)
    assert client().get("/flows/values/f").text == "retry: 1000\n\n" + ":\n\n" * 3, "a comment with each look"
    monkeypatch.setattr(site, "_MOST_STREAMS", 0)
    assert client().get("/flows/values/f").text == "retry: 1000\n\n:\n\n", "one look if there are many"
    assert flow.cancel()
    assert _events(client().get("/flows/values/f").text) == [("end", "0.end", {"state": CANCELLED})]


def test_who_may_not_read_values_gets_none(client: Any, stream: Stream, shop: Ems) -> None:
    flows.waits.start(id="f")
    assert client("viewer").get("/flows/values/f").status_code == 403
    assert client("").get("/flows/values/f").status_code == 403
    assert client().get("/flows/values/g").status_code == 404
    for last in ("x", "-1", "1e3"):
        assert client().get("/flows/values/f", headers={"last-event-id": last}).status_code == 400, last


def test_values_are_redacted(client: Any, stream: Stream) -> None:
    stream.worker("tests.flows.shop:app")
    assert flows.telling.start(1, id="f").get(60) == 1
    text = client(redact={"default": ["n"]}).get("/flows/values/f").text
    assert [data for _, _, data in _events(text)] == [{"n": "•••"}, {"state": "done"}]


def test_under_wsgi_a_stream_holds_no_worker(stream: Stream, server: LocalDatabase, shop: Ems) -> None:
    flows.waits.start(id="f")
    with users(server, stream.url) as make:
        app = ems_wsgi(make("reader"), access=lambda request: Visitor("ann", "reader"))
        environ = {
            "REQUEST_METHOD": "GET", "PATH_INFO": "/flows/values/f", "SERVER_NAME": "localhost", "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1", "wsgi.url_scheme": "http", "QUERY_STRING": "", "SCRIPT_NAME": "", "wsgi.input": io.BytesIO(), "CONTENT_LENGTH": "0",
        }  # fmt: skip
        assert b"".join(app(environ, lambda *_: None)) == b"retry: 1000\n\n:\n\n"
