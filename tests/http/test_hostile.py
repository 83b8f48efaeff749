"""Requests that nobody should send: each is answered with a status and an error in JSON, and nothing else happens."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from emsworker.cli.main import ems as root
from emsworker.http.openapi import document
from emsworker.http.operations import OPERATIONS
from tests.http.calling import Server, serving
from tests.process.stream import Stream
from tests.support.waiting import until

SEND, FETCH = "/v1/topics/t/messages", "/v1/topics/t/groups/g/fetch"
ONE = {"messages": [{"body": 1}]}
REFUSED: list[tuple[str, str, Any, str | None, int, str]] = [
    ("POST", SEND, ONE, None, 401, "no_token"),
    ("POST", SEND, ONE, "reader", 403, "role"),
    ("POST", FETCH, {}, "producer", 403, "role"),
    ("POST", SEND, ONE, "only", 403, "topic"),
    ("GET", "/v1/topics/t/results?id=x", None, "only", 403, "topic"),
    ("GET", "/metrics", None, None, 401, "no_token"),
    ("GET", "/nowhere", None, "worker", 404, "no_such_path"),
    ("GET", SEND, None, "worker", 405, "wrong_method"),
    ("POST", SEND, b"{", "worker", 400, "not_json"),
    ("POST", SEND, b"\xff", "worker", 400, "not_json"),
    ("POST", SEND, b'{"messages": [{"body": NaN}]}', "worker", 400, "not_json"),
    ("POST", SEND, b"[" * 100_000, "worker", 400, "not_json"),
    ("POST", SEND, b'{"messages": [{"body": 1e999}]}', "worker", 400, "invalid"),
    ("POST", SEND, b'{"messages": [{"body": ' + b"9" * 5000 + b"}]}", "worker", 400, "not_json"),
    ("POST", SEND, b'{"messages": [{"body": "\\ud800"}]}', "worker", 400, "invalid"),
    ("POST", SEND, [], "worker", 400, "invalid"),
    ("POST", SEND, {}, "worker", 400, "invalid"),
    ("POST", SEND, {"messages": []}, "worker", 400, "invalid"),
    ("POST", SEND, {"messages": [{}]}, "worker", 400, "invalid"),
    ("POST", SEND, {"messages": [{"body": 1, "body_base64": "AA=="}]}, "worker", 400, "invalid"),
    ("POST", SEND, {"messages": [{"body_base64": "?"}]}, "worker", 400, "invalid"),
    ("POST", SEND, {"messages": [{"body": 1, "key": 5}]}, "worker", 400, "invalid"),
    ("POST", SEND, {"messages": [{"body": 1, "key": "k" * 256}]}, "worker", 400, "invalid"),
    ("POST", SEND, {"messages": [{"body": 1, "tag": "\ud800"}]}, "worker", 400, "invalid"),
    ("POST", SEND, {"messages": [{"body": 1, "id": "7"}]}, "worker", 400, "invalid"),
    ("POST", SEND, {"messages": [{"body": 1, "priority": True}]}, "worker", 400, "invalid"),
    ("POST", SEND, {"messages": [{"body": 1, "delay_s": -1}]}, "worker", 400, "invalid"),
    ("POST", SEND, {"messages": [{"body": 1, "headers": {"ems-task": "x"}}]}, "worker", 400, "invalid"),
    ("POST", SEND, {"messages": [{"body": 1, "headers": {"a": 1}}]}, "worker", 400, "invalid"),
    ("POST", SEND, {"messages": [{"body": 1, "uid": "x"}]}, "worker", 400, "invalid"),
    ("POST", SEND, {"messages": [{"body": 1}] * 1001}, "worker", 400, "invalid"),
    ("POST", "/v1/topics/missing/messages", ONE, "worker", 404, "unknown_topic"),
    ("POST", "/v1/topics/missing/groups/g/fetch", {}, "worker", 404, "unknown_topic"),
    ("POST", "/v1/topics/t/groups/missing/fetch", {}, "worker", 404, "unknown_group"),
    ("POST", "/v1/topics/a%20b/messages", ONE, "worker", 400, "invalid"),
    ("POST", "/v1/topics/%00/messages", ONE, "worker", 400, "invalid"),
    ("POST", FETCH, {"n": 0}, "worker", 400, "invalid"),
    ("POST", FETCH, {"n": 1.5}, "worker", 400, "invalid"),
    ("POST", FETCH, {"n": True}, "worker", 400, "invalid"),
    ("POST", FETCH, {"wait_s": 61}, "worker", 400, "invalid"),
    ("POST", FETCH, {"wait_s": "5"}, "worker", 400, "invalid"),
    ("POST", FETCH, {"lease_s": 0}, "worker", 400, "invalid"),
    ("POST", "/v1/ack", {"receipts": [7]}, "worker", 400, "invalid"),
    ("POST", "/v1/ack", {"receipts": ["\ud800"]}, "worker", 400, "invalid"),
    ("POST", "/v1/ack", {"receipts": ["a.b", "x"]}, "worker", 409, "not_in_hand"),
    ("POST", "/v1/extend", {"receipts": ["x"], "seconds": 1e9}, "worker", 400, "invalid"),
    ("POST", "/v1/nack", {"receipts": ["x"], "dead": True, "delay_s": 1}, "worker", 400, "invalid"),
    ("GET", "/v1/topics/t/results", None, "worker", 400, "invalid"),
    ("GET", "/v1/topics/t/results?id=x", None, "worker", 400, "invalid"),
    ("GET", "/v1/topics/t/results/events?id=x", None, "worker", 400, "invalid"),
    ("GET", "/v1/topics/t/results?id=x&color=red", None, "worker", 400, "invalid"),
    ("GET", "/v1/topics/t/flows/events?id=x&after=-1", None, "worker", 400, "invalid"),
]


@pytest.fixture(scope="module")
def strict(stream: Stream, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server that creates nothing, for small bodies, few clients and two groups."""
    stream.app.send("t", 0)
    topic = stream.app.stream.catalog.topic("t")
    for group in ("g", "idle", "calm", "third"):
        stream.app.stream.catalog.group(topic, group)
    limits = ("--max-body", "100000", "--groups", "2", "--waiting", "2", "--streams", "1", "--grace", "0")
    with serving(stream, tmp_path_factory.mktemp("strict"), *limits) as site:
        yield site


def test_what_is_wrong_is_refused_in_json(strict: Server, stream: Stream) -> None:
    before = stream.one("SELECT COUNT(*) FROM ems_message")
    error = Draft202012Validator(document()["components"]["schemas"]["Error"])
    wrong = []
    for method, path, body, role, status, code in REFUSED:
        answer = strict.ask(method, path, body, role)
        if (answer.status, answer.json["error"]["code"]) != (status, code):
            wrong.append((method, path, str(body)[:80], answer.status, answer.json))
        error.validate(answer.json)
        assert "Traceback" not in json.dumps(answer.json) and len(answer.json["error"]["message"]) < 1000
    assert wrong == []
    assert stream.one("SELECT COUNT(*) FROM ems_message") == before
    assert "Traceback" not in strict.running.tell()


def test_a_token_that_is_not_known_is_refused_as_none(strict: Server) -> None:
    for given in ("Bearer ems_x", "Bearer", "Basic eDp5", f"Bearer {strict.tokens['worker']}x", "Bearer \xff"):
        answer = strict.ask("POST", FETCH, {}, role=None, Authorization=given)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, 'Bearer realm="ems"')
        assert answer.code == "unknown_token"


def test_a_body_that_is_too_large_or_of_another_kind_is_refused(strict: Server) -> None:
    large = json.dumps({"messages": [{"body": "x" * 200_000}]}).encode()
    answer = strict.ask("POST", SEND, large)
    assert (answer.status, answer.code) == (413, "too_large")
    chunked = strict.open()
    chunked.request("POST", SEND, iter([large]), strict.headers(), encode_chunked=True)
    found = chunked.getresponse()
    assert found.status == 413 and json.loads(found.read())["error"]["code"] == "too_large"
    chunked.close()
    answer = strict.ask("POST", SEND, b"messages=1", **{"Content-Type": "application/x-www-form-urlencoded"})
    assert (answer.status, answer.code) == (415, "not_json")


def test_a_request_with_two_lengths_is_refused_and_its_connection_ends(strict: Server) -> None:
    with socket.create_connection(("127.0.0.1", strict.port), timeout=30) as client:
        client.sendall(
            b"POST /v1/ack HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"
        )
        answered = b"".join(iter(lambda: client.recv(4096), b""))
    assert answered.startswith(b"HTTP/1.1 400 ")


def test_who_would_take_more_than_there_is_for_all_is_refused(strict: Server) -> None:
    paths = [f"/v1/topics/t/groups/{group}/fetch" for group in ("idle", "calm", "third")]
    waiting = [strict.open() for _ in range(2)]
    for path in paths[:2]:
        drained = strict.post(path, {"wait_s": 10}).json["messages"]
        strict.ok("/v1/ack", {"receipts": [one["receipt"] for one in drained]})
    full = strict.post(paths[2], {})
    assert (full.status, full.code, full.headers["retry-after"]) == (503, "busy", "1"), "two groups are open"
    try:
        for one in waiting:
            one.request("POST", paths[0], b'{"wait_s": 60}', strict.headers())
        until(lambda: _waiting(strict) == 2, 30, "they wait")
        busy = strict.post(paths[1], {"wait_s": 1})
        assert (busy.status, busy.code) == (503, "busy"), "two clients wait"
    finally:
        for one in waiting:
            one.close()
    until(lambda: _waiting(strict) == 0, 30, "they have gone")


def _waiting(site: Server) -> float:
    lines = [line for line in site.ask("GET", "/metrics", role="reader").json.splitlines() if "http_waiting{" in line]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_a_token_that_is_taken_out_of_the_file_is_refused_soon(strict: Server) -> None:
    path = strict.running.out.parent / "tokens"
    text = path.read_text()
    try:
        path.write_text("".join(line for line in text.splitlines(keepends=True) if not line.startswith("producer:")))
        until(lambda: strict.post(SEND, {}, "producer").status == 401, 20, "it is taken away")
        path.write_text("half a line")
        assert strict.post(SEND, {}, "worker").status == 400, "those of before hold"
    finally:
        path.write_text(text)
    until(lambda: strict.post(SEND, {}, "producer").status == 400, 20, "it is back")


def test_the_document_describes_every_operation_by_valid_schemas(strict: Server) -> None:
    shown = strict.ask("GET", "/openapi.json", role=None).json
    assert shown["openapi"] == "3.1.0"
    described = {(method.upper(), path) for path, methods in shown["paths"].items() for method in methods}
    assert described == {(one.method, one.path) for one in OPERATIONS}
    for methods in shown["paths"].values():
        for one in methods.values():
            for place in (one.get("requestBody", {}), *one["responses"].values()):
                for content in place.get("content", {}).values():
                    Draft202012Validator.check_schema(content["schema"])
            for parameter in one["parameters"]:
                Draft202012Validator.check_schema(parameter["schema"])
    strict.ask("GET", "/readyz", role=None)
    strict.send("t", 1)
    fetched = strict.fetch("t", "calm", n=1, wait_s=10)
    wanted = shown["paths"]["/v1/topics/{topic}/groups/{group}/fetch"]["post"]["responses"]["200"]
    Draft202012Validator(wanted["content"]["application/json"]["schema"]).validate({"messages": fetched})
    strict.ok("/v1/ack", {"receipts": [one["receipt"] for one in fetched]})
    assert fetched


def test_a_file_of_tokens_that_is_wrong_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "tokens"

    def told(*options: str) -> str:
        done = CliRunner().invoke(root, ["http", *options], env={"EMS_URL": "mysql://nobody@127.0.0.1:1/none"})
        assert done.exit_code != 0 and "Traceback" not in done.output
        return done.output

    assert "Give --tokens" in told()
    assert "cannot be read" in told("--tokens", str(path))
    for text, why in (("", "names no token"), ("a:b:c\n", "line 1"), ("#\na:worker:*:00\n", "line 2")):
        path.write_text(text)
        assert why in (said := told("--tokens", str(path))) and len(said.splitlines()) == 1, said
