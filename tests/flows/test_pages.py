"""Flows in the dashboard: their list, one with its graph, and what an operator does about them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from starlette.testclient import TestClient

from emsworker.flows.operating.admin import StepEntry
from emsworker.flows.operating.graph import draw
from emsworker.local import LocalDatabase
from emsworker.web import Visitor, ems_web
from tests.flows import depot
from tests.flows.test_commands import DEPOT
from tests.process.stream import Stream
from tests.support.roles import users
from tests.support.waiting import until

_NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def _step(number: int, began: float, ended: float | None, name: str = "") -> StepEntry:
    times = (_NOW + timedelta(seconds=began), None if ended is None else _NOW + timedelta(seconds=ended))
    state = "waiting" if ended is None else "done"
    return StepEntry(number, "call", name or f"s{number}", state, 1, 0, 0, None, None, *times, None)


def test_the_graph_joins_what_ran_side_by_side() -> None:
    graph = draw(
        [_step(1, 0, 1), _step(2, 1, 9), _step(3, 1, 2), _step(4, 2, 4), _step(5, 9, None)],
        _NOW + timedelta(seconds=20),
    )
    assert graph is not None
    assert [node.step.number for node in graph.nodes if node.is_critical] == [1, 2, 5]
    assert [step.number for step in graph.critical] == [1, 2, 5]
    places = {node.step.number: (node.x, node.y) for node in graph.nodes}
    assert places[2][1] == places[3][1] and places[2][0] != places[3][0], "side by side"
    assert places[4][1] > places[3][1] and places[5][1] > places[4][1]
    assert len(graph.edges) == 5  # 1-2, 1-3, 3-4, 2-5, 4-5
    assert draw([], _NOW) is None


def test_the_graph_of_a_long_flow_is_that_of_its_end() -> None:
    graph = draw([_step(number, number, number + 1) for number in range(1, 201)], _NOW)
    assert graph is not None and graph.left_out == 140 and graph.nodes[0].step.number == 141
    assert len(graph.critical) == 60


@pytest.fixture
def client(stream: Stream, server: LocalDatabase, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes clients of the dashboard, which reads as a reader and changes as an operator; flows are run by a worker."""
    monkeypatch.setenv(depot.MENDED, str(stream.record.folder))
    before = depot.app.settings.url
    depot.app.reconfigure(url=stream.url)
    stream.worker(DEPOT)
    with users(server, stream.url) as make:
        urls = {role: make(role) for role in ("viewer", "reader", "operator")}

        def client(level: Any = "operator", reads: str = "reader") -> TestClient:
            app = ems_web(urls[reads], access=lambda request: Visitor("ann", level), operator_url=urls["operator"])
            headers = {"sec-fetch-site": "same-origin"}
            return TestClient(app, "http://localhost", headers=headers, follow_redirects=False)

        yield client
    depot.app.close()
    depot.app.reconfigure(url=before)


def _state(stream: Stream, key: str, state: str) -> None:
    found = "SELECT state FROM ems_flow WHERE `key` = %s"
    until(lambda: stream.rows(found, key) == [(state,)], 30, stream.logs())


def _post(client: TestClient, path: str, **fields: Any) -> str:
    found = client.post(path, data={"back": "/flows", **fields})
    assert found.status_code == 303, found.text
    return client.get(found.headers["location"]).text


def test_pages_show_flows_and_operators_change_them(client: Any, stream: Stream) -> None:
    depot.ship.start(3, id="order/3", attributes={"customer": 17})
    depot.shelf.start(1, id="<b>shelf</b>")
    _state(stream, "order/3", "failed")
    _state(stream, "<b>shelf</b>", "waiting")
    operator = client()
    page = operator.get("/flows").text
    assert "&lt;b&gt;shelf&lt;/b&gt;" in page and "<b>shelf" not in page and "signal picked" in page
    assert 'aria-current="page">Flows' in page
    assert "order/3" in operator.get("/flows?attribute=customer%3D17").text
    assert "order/3" not in operator.get("/flows?attribute=customer%3D18").text
    assert "order/3" not in operator.get("/flows?state=waiting").text
    assert operator.get("/flows?state=lost").status_code == 400
    assert operator.get("/flows?attribute=customer").status_code == 400
    assert operator.get("/flows/one/nothing").status_code == 404

    page = operator.get("/flows/one/order%2F3").text
    assert '<svg class="graph"' in page and page.count('<g class="node') == 2 and "the packer is down" in page
    assert "<script>" not in page and " style=" not in page
    assert "Critical path" in page and re.search(r'href="/trace\?id=[0-9a-f-]{36}"', page)

    for typed, path in (("order/3", "order/3"), ("<b>shelf</b>", "%3Cb%3Eshelf%3C/b%3E")):
        found = operator.get("/go", params={"q": typed})
        assert found.headers["location"] == f"/flows/one/{path}"
        assert operator.get(found.headers["location"]).status_code == 200
    assert operator.get("/go?q=order/4").status_code == 404

    depot.mend()
    assert "<strong>Retry flow</strong>: 1 changed" in _post(operator, "/do/flows/retry", id="order/3")
    _state(stream, "order/3", "done")
    assert "2 changed" not in _post(operator, "/do/flows/retry", id="order/3"), "it has ended well"
    refused = operator.post("/do/flows/signal", data={"id": "<b>shelf</b>", "name": "picked", "value": "{"})
    assert refused.status_code == 400 and "no JSON" in refused.text
    _post(operator, "/do/flows/signal", id="<b>shelf</b>", name="picked", value='{"by": "Ada"}')
    _state(stream, "<b>shelf</b>", "done")
    assert "Ada" in operator.get("/flows/one/%3Cb%3Eshelf%3C%2Fb%3E").text
    assert {row for row in stream.rows("SELECT actor, action, target FROM ems_audit")} == {
        ("ann", "retry flow", "order/3"),
        ("ann", "signal flow", "<b>shelf</b> picked"),
    }


def test_all_of_a_filter_are_changed_after_a_confirmation(client: Any, stream: Stream) -> None:
    for n in range(3):
        depot.ship.start(n, id=f"ship-{n}")
        depot.shelf.start(n, id=f"shelf-{n}")
    until(
        lambda: stream.rows("SELECT COUNT(*) FROM ems_flow WHERE state IN ('failed', 'waiting')") == [(6,)],
        60,
        stream.logs(),
    )
    for n in range(3):
        _state(stream, f"ship-{n}", "failed")
    operator = client()
    assert "Retry 3 flows" in operator.get("/flows/all/retry").text
    refused = operator.post("/do/flows/all", data={"what": "retry", "confirm": "yes"})
    assert refused.status_code == 400 and "nothing was changed" in refused.text
    depot.mend()
    assert "3 changed" in _post(operator, "/do/flows/all", what="retry", confirm="retry all")
    for n in range(3):
        _state(stream, f"ship-{n}", "done")
    page = _post(operator, "/do/flows/all", what="cancel", confirm="cancel all", waits="signal picked")
    assert "3 changed" in page, re.findall(r"class=.(?:did|notice).*", page)
    assert stream.rows("SELECT COUNT(*) FROM ems_flow WHERE state = 'cancelled'") == [(3,)]


def test_who_may_see_and_do_what(client: Any, stream: Stream) -> None:
    depot.ship.start(3, id="three")
    _state(stream, "three", "failed")
    for level, reads in (("viewer", "viewer"), ("viewer", "reader"), ("reader", "viewer")):
        page = client(level, reads).get("/flows/one/three")
        assert page.status_code == 200 and "CallFailed" in page.text and "the packer is down" not in page.text
        assert client(level, reads).get("/flows").status_code == 200
    assert "the packer is down" in client("reader").get("/flows/one/three").text
    for level in ("viewer", "reader"):
        assert client(level).post("/do/flows/retry", data={"id": "three"}).status_code == 403
        assert client(level).get("/flows/all/retry").status_code == 403
        assert 'id="retry"' not in client(level).get("/flows/one/three").text
    assert stream.rows("SELECT state FROM ems_flow") == [("failed",)]
