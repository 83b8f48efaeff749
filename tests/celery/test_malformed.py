"""Messages in a queue of Celery that Celery has not written: dead letters with a reason, and no end of any worker."""

import json
import uuid
from collections.abc import Callable
from typing import Any

import kombu
import pytest

from emsworker.core.codec import encode_headers
from emsworker.core.ids import new_uid
from emsworker.core.model import NewMessage
from emsworker.integrations.celery.names import queue_topic
from tests.celery.kombu_program import Program
from tests.celery.project import Project
from tests.support.waiting import until

TASK = "tests.celery.projects.tasks.work"
Rows = Callable[..., list[tuple[Any, ...]]]
_DEEP: Any = []
for _ in range(300):
    _DEEP = [_DEEP]
_ODD: list[Any] = [5, -1.5, True, [], [1], {}, {"a": []}, 1 << 70, "x" * 300, "", _DEEP, "\u202e%s%(a)s", 1e308]
_CALL = {"task": TASK, "id": "id", "root_id": "id", "parent_id": None, "group": None, "lang": "py", "retries": 0}
_BODY: list[Any] = [[7], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
_NAMES = [
    "task", "id", "root_id", "parent_id", "group", "group_index", "shadow", "argsrepr", "kwargsrepr", "origin", "lang", "eta",
    "expires", "retries", "timelimit", "stamped_headers", "stamps", "ignore_result", "replaced_task_nesting", "delivery_info",
    "compression", "properties", "hostname", "args", "kwargs", "method",
]  # fmt: skip


def _send(program: Program, body: bytes, amqp: Any, **texts: str) -> None:
    block = {"amqp": json.dumps(amqp), "content-type": "application/json", "content-encoding": "utf-8", **texts}
    broker = program.channel._stream.broker
    message = NewMessage(new_uid(), None, b"celery", encode_headers(block), body)
    broker.producer.send_together([(broker.topic(queue_topic("celery")), message)])


def _of_headers() -> list[tuple[Any, dict[str, Any], dict[str, Any]]]:
    found = [(_BODY, {**_CALL, name: value}, {}) for name in _NAMES for value in [*_ODD, None]]
    found += [(_BODY, {other: part for other, part in _CALL.items() if other != name}, {}) for name in _CALL]
    more = {
        "timelimit": ["x", [1], [1, 2, 3], ["1", None], [None, "x"], [-1, None], [1e308, None], [{}, {}], [[], []], [True, None]],
        "eta": ["never", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59.999999-23:59", "2026-13-45"],
        "expires": ["never", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59.999999-23:59", "0001-01-01T00:00:00"],
        "stamped_headers": [["a", 1], [[]], "abc"],
        "retries": ["1", None, -5, 10**30],
    }  # fmt: skip
    return found + [(_BODY, {**_CALL, name: value}, {}) for name, values in more.items() for value in values]


def _of_properties() -> list[tuple[Any, dict[str, Any], dict[str, Any]]]:
    names = [
        "delivery_info",
        "reply_to",
        "correlation_id",
        "priority",
        "delivery_mode",
        "expiration",
        "body_encoding",
        "headers",
    ]
    return [(_BODY, _CALL, {name: value}) for name in names for value in _ODD]


def _of_bodies() -> list[tuple[Any, dict[str, Any], dict[str, Any]]]:
    bodies: list[Any] = [
        *_ODD,
        None,
        [[], {}],
        [[], {}, {}, {}],
        ["x", {}, {}],
        [[], [], {}],
        [[], {}, []],
        [[], {}, "x"],
    ]
    bodies += [
        [{}, {}, {}],
        [5, 5, 5],
        [None, None, None],
        {"args": 5},
        {"task": TASK},
        {"task": TASK, "id": []},
        {"args": [], "kwargs": 5},
    ]
    for name in ("callbacks", "errbacks", "chain", "chord"):
        bodies += [
            [[7], {}, {name: value}] for value in [*_ODD, [5], [{}], [{"task": 5}], {"task": TASK, "args": 5}, [[TASK]]]
        ]
    old = {"task": TASK, "id": "old", "args": [7], "kwargs": {}}
    bodies += [{**old, name: value} for name in [*_NAMES, "taskset", "utc", "callbacks", "chord"] for value in _ODD]
    return [(body, headers, {}) for body in bodies for headers in ({}, _CALL)]


def _has_ended(project: Project, number: int) -> bool:
    return ["ended", str(number)] in (words[:2] for words in project.lines())


@pytest.mark.parametrize("pool", ["prefork", "solo"])
@pytest.mark.parametrize("kind", [_of_headers, _of_properties, _of_bodies], ids=["headers", "properties", "bodies"])
def test_no_message_ends_a_worker_or_keeps_its_place(
    project: Project, program: Callable[..., Program], rows: Rows, kind: Callable[[], list[Any]], pool: str
) -> None:
    worker = project.worker("-c", "1", "-P", pool, "-E").wait_ready()
    project.run("work.delay(0)")
    until(lambda: _has_ended(project, 0), 60, "it works")
    one, cases = program(), kind()
    for number, (body, headers, properties) in enumerate(cases):
        if isinstance(headers.get("id"), str) and headers["id"] == "id":
            headers = {**headers, "id": str(uuid.UUID(int=number))}
        _send(one, json.dumps(body).encode(), {"headers": headers, "properties": properties, "routing_key": "celery"})
    for amqp in (
        5,
        "x",
        [],
        None,
        {"headers": 5},
        {"headers": [1]},
        {"properties": "x"},
        {"exchange": {}},
        {"routing_key": 5},
    ):
        _send(one, json.dumps(_BODY).encode(), amqp)
    _send(one, b"\xff", {"headers": _CALL})
    _send(one, b"{", {"headers": _CALL})
    project.run("work.delay(1)")
    until(lambda: _has_ended(project, 1), 120, "those behind them run")
    assert worker.process.poll() is None and "Unrecoverable error" not in worker.text
    assert "Error in timer" not in worker.text
    project.run("work.delay(2)")
    until(lambda: _has_ended(project, 2), 60, "and the prefetched ones are settled")
    assert worker.stop() == 0, worker.text[-3000:]
    assert rows("SELECT lo, hi FROM ems_claim WHERE state <> 'done'") == [], "all were settled before it stopped"
    reasons = {reason.split(" is not what")[0] for (reason,) in rows("SELECT reason FROM ems_dead")}
    assert len(reasons) > 20, reasons


def test_no_event_and_no_command_ends_a_worker(project: Project, program: Callable[..., Program]) -> None:
    worker = project.worker("-c", "1").wait_ready()
    one = program()
    events = kombu.Exchange("celeryev", type="topic")
    commands = kombu.Exchange("celery.pidbox", type="fanout", durable=False)
    for key in ("worker.online", "worker.heartbeat", "worker.offline", "worker.nothing"):
        for body in (
            *_ODD,
            None,
            {"hostname": 5},
            {"hostname": "h", "type": [], "clock": "x", "timestamp": "y", "pid": []},
        ):
            for headers in ({}, {"hostname": "h"}, {"hostname": [5]}):
                one.send(body, exchange=events, routing_key=key, headers=headers)
    ping = {"method": "ping", "arguments": {}, "destination": None}
    wrong: list[Any] = [
        {},
        {**ping, "method": []},
        {**ping, "arguments": 5},
        {**ping, "destination": 5},
        {**ping, "pattern": 5, "matcher": []},
    ]
    for body in (*_ODD, *wrong, {**ping, "reply_to": 5}, {**ping, "reply_to": {"exchange": [], "routing_key": {}}}):
        for headers in ({}, {"clock": "x"}, {"clock": []}, {"expires": "x"}):
            one.send(body, exchange=commands, headers=headers)
    project.run("work.delay(1)")
    until(lambda: _has_ended(project, 1), 60, "it works")
    until(lambda: "pong" in project.celery("inspect", "ping").stdout, 60, "it answers")
    assert worker.process.poll() is None and "Unrecoverable error" not in worker.text, worker.text[-3000:]
    assert worker.stop() == 0
