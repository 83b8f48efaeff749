"""Messages by HTTP: sent, fetched, settled, and delivered again."""

from __future__ import annotations

import re
import signal
import socket
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.http.calling import Server, serving
from tests.process.stream import Stream
from tests.support.waiting import until


def test_what_is_sent_is_fetched_with_all_that_it_has(site: Server) -> None:
    messages = [
        {"body": {"n": 1, "text": "ä"}, "key": "k", "tag": "t", "headers": {"trace": "x"}},
        {"body": "text"},
        {"body_base64": "AAH/"},
        {"body": None},
    ]
    sent = site.ok("/v1/topics/all/messages", {"messages": messages})["messages"]
    assert [one["created"] for one in sent] == [True] * 4
    found: list[dict[str, Any]] = []
    while len(found) < 4:
        found += site.fetch("all", n=10, wait_s=10)
    by_id = {one["id"]: one for one in found}
    first, text, raw, nothing = (by_id[one["id"]] for one in sent)
    assert (first["body"], first["key"], first["tag"], first["attempt"]) == ({"n": 1, "text": "ä"}, "k", "t", 1)
    assert first["headers"] == {"trace": "x"} and first["topic"] == "all"
    assert (text["body"], raw["body_base64"], nothing["body"]) == ("text", "AAH/", None) and text["key"] is None
    site.ok("/v1/ack", {"receipts": [one["receipt"] for one in found]})


def test_a_send_that_is_repeated_with_its_id_is_one_message(site: Server) -> None:
    message = {"body": 1, "id": str(uuid.uuid4())}
    first, again = (site.ok("/v1/topics/once/messages", {"messages": [message]})["messages"][0] for _ in range(2))
    assert first["id"] == again["id"] == message["id"] and (first["created"], again["created"]) == (True, False)


def test_messages_are_acked_retried_released_and_buried(site: Server, stream: Stream) -> None:
    site.send("ends", *range(4))
    found: dict[int, dict[str, Any]] = {}
    while len(found) < 4:
        found |= {one["body"]: one for one in site.fetch("ends", n=4, wait_s=10)}
    receipt = {body: one["receipt"] for body, one in found.items()}
    site.ok("/v1/ack", {"receipts": [receipt[0]]})
    assert stream.one("SELECT COUNT(*) FROM ems_claim WHERE acked_to >= lo OR state = 'done'"), "it is written down"
    site.ok("/v1/ack", {"receipts": [receipt[0]]})  # a client that has not heard the answer asks again
    refused = site.post("/v1/nack", {"receipts": [receipt[0]]})
    assert (refused.status, refused.code, refused.json["failed"][0]["receipt"]) == (409, "not_in_hand", receipt[0])
    site.ok("/v1/nack", {"receipts": [receipt[1]], "delay_s": 0, "error": "not now"})
    site.ok("/v1/nack", {"receipts": [receipt[2]], "dead": True, "error": "never"})
    site.ok("/v1/release", {"receipts": [receipt[3]]})
    again: dict[int, dict[str, Any]] = {}
    while len(again) < 2:
        again |= {one["body"]: one for one in site.fetch("ends", n=4, wait_s=10)}
    assert {body: one["attempt"] for body, one in again.items()} == {1: 2, 3: 1}
    mixed = [again[1]["receipt"], receipt[1], again[3]["receipt"], "no such receipt \ud800"]
    refused = site.post("/v1/ack", {"receipts": mixed[:3]})
    assert refused.status == 409 and [one["receipt"] for one in refused.json["failed"]] == [receipt[1]]
    assert stream.rows("SELECT reason FROM ems_dead WHERE reason LIKE %s", "%never%") or stream.rows(
        "SELECT error FROM ems_dead WHERE error LIKE %s", "%never%"
    )
    assert site.fetch("ends", wait_s=0) == []


def test_a_lease_that_is_not_extended_runs_out_and_the_message_comes_again(site: Server) -> None:
    site.send("leased", "short", "long")
    found: dict[str, dict[str, Any]] = {}
    while len(found) < 2:
        found |= {one["body"]: one for one in site.fetch("leased", n=2, wait_s=10, lease_s=1)}
    site.ok("/v1/extend", {"receipts": [found["long"]["receipt"]], "seconds": 600})
    again = until(lambda: site.fetch("leased", n=2, wait_s=5), 30, "the lease has run out")
    assert [(one["body"], one["attempt"]) for one in again] == [("short", 2)]
    late = site.post("/v1/ack", {"receipts": [found["short"]["receipt"]]})
    assert (late.status, late.code) == (409, "timed_out")
    site.ok("/v1/ack", {"receipts": [found["long"]["receipt"], again[0]["receipt"]]})


def test_many_clients_wait_without_a_thread_or_a_connection_each(site: Server, stream: Stream) -> None:
    site.send("polled", 0)
    site.ok("/v1/ack", {"receipts": [site.fetch("polled", wait_s=10)[0]["receipt"]]})

    def used() -> tuple[int, int]:
        database = stream.url.rsplit("/", 1)[1]
        threads = len(list(Path(f"/proc/{site.pid}/task").iterdir()))
        return threads, stream.one("SELECT COUNT(*) FROM information_schema.processlist WHERE db = %s", database)

    def take(n: int, wait_s: float) -> list[int]:
        found = site.fetch("polled", n=n, wait_s=wait_s)
        if found:
            site.ok("/v1/ack", {"receipts": [one["receipt"] for one in found]})
        return [one["body"] for one in found]

    threads, connections = used()
    with ThreadPoolExecutor(40) as clients:
        waiting = [clients.submit(take, 2, 50) for _ in range(40)]
        until(lambda: _waiting(site, "polled") == 40, 30, "all wait")
        now = used()
        site.send("polled", *range(1, 41))
        site.send("polled", *range(41, 81))
        got = [one for each in waiting for one in each.result(60)]
    while len(got) < 80:
        more = take(50, 20)
        assert more, got
        got += more
    assert sorted(got) == list(range(1, 81)), "each came once"
    assert now[0] - threads <= 4 and now[1] - connections <= 4, (threads, connections, now)


def _waiting(site: Server, topic: str) -> int:
    """The clients that wait for messages of a topic, by the metrics."""
    text: str = site.ask("GET", "/metrics", role="reader").json
    found = re.findall(rf'ems_http_waiting{{group="g",topic="{topic}"}} (\d+)', text)
    return int(found[0]) if found else 0


def test_what_a_client_that_has_gone_was_to_get_goes_to_another_at_once(site: Server) -> None:
    site.send("gone", "first")
    site.ok("/v1/ack", {"receipts": [site.fetch("gone", wait_s=10)[0]["receipt"]]})
    with socket.create_connection(("127.0.0.1", site.port)) as client:
        body = b'{"wait_s": 60}'
        head = "".join(f"{name}: {value}\r\n" for name, value in site.headers().items())
        client.sendall(
            f"POST /v1/topics/gone/groups/g/fetch HTTP/1.1\r\nHost: x\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        until(lambda: _waiting(site, "gone") == 1, 30, "it waits")
    until(lambda: _waiting(site, "gone") == 0, 30, "it has gone")
    site.send("gone", "second")
    (found,) = site.fetch("gone", wait_s=30)
    assert (found["body"], found["attempt"]) == ("second", 1)
    site.ok("/v1/ack", {"receipts": [found["receipt"]]})


def test_what_is_acked_is_done_and_the_rest_comes_again_after_a_kill(
    site: Server, stream: Stream, tmp_path: Path
) -> None:
    with serving(stream, tmp_path, "--auto-create") as first:
        first.send("killed", *range(6))
        held: dict[int, str] = {}
        while len(held) < 6:
            held |= {one["body"]: one["receipt"] for one in first.fetch("killed", n=6, wait_s=10)}
        first.ok("/v1/ack", {"receipts": [held[0], held[3]]})
        first.running.process.send_signal(signal.SIGKILL)
        first.running.process.wait()
    lost = site.post("/v1/ack", {"receipts": [held[1]]})
    assert (lost.status, lost.code) == (409, "not_in_hand")
    left = {1, 2, 4, 5}
    while left:  # after a crash they come one at a time
        for one in site.fetch("killed", n=6, wait_s=20):
            assert one["body"] in left, "what was acked does not come again"
            left.remove(one["body"])
            site.ok("/v1/ack", {"receipts": [one["receipt"]]})
    assert site.fetch("killed", n=6) == []


def test_a_server_that_stops_lets_clients_settle_and_gives_back_the_rest(
    site: Server, stream: Stream, tmp_path: Path
) -> None:
    with serving(stream, tmp_path, "--auto-create", "--grace", "3s") as ending, ThreadPoolExecutor(1) as clients:
        ending.send("stopped", 0, 1)
        held: dict[int, str] = {}
        while len(held) < 2:
            held |= {one["body"]: one["receipt"] for one in ending.fetch("stopped", n=2, wait_s=10)}
        waiting = clients.submit(ending.post, "/v1/topics/stopped/groups/g/fetch", {"wait_s": 60})
        until(lambda: _waiting(ending, "stopped") == 1, 30, "it waits")
        ending.running.process.send_signal(signal.SIGTERM)
        answer = waiting.result(30)
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "stopping", "1")
        ending.ok("/v1/ack", {"receipts": [held[0]]})
        assert ending.running.process.wait(30) == 0, ending.running.tell()
        assert "Traceback" not in ending.running.tell()
    (found,) = site.fetch("stopped", n=2, wait_s=20)
    assert (found["body"], found["attempt"]) == (1, 1), "no attempt was charged"
    site.ok("/v1/ack", {"receipts": [found["receipt"]]})
