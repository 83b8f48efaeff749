"""Changes of flows as messages of a topic."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from emsworker import Ems
from emsworker.admin import Admin
from emsworker.flows import FlowFailed
from emsworker.flows.operating.watching import OpenFlow, WatchFlows
from emsworker.flows.rows import StoredError
from emsworker.flows.store.events import EVENTS_TOPIC
from emsworker.store.engine.database import Database
from tests.flows import shop as flows
from tests.flows.test_store import other
from tests.process.stream import Stream
from tests.support.roles import users
from tests.support.waiting import until


def _events(stream: Stream) -> list[dict[str, Any]]:
    """The events, in the order of their messages' ids."""
    rows = stream.rows(
        "SELECT m.body, m.`key`, m.tag FROM (SELECT topic_id, uid, body, `key`, tag FROM ems_message WHERE kind = 'message' UNION ALL "
        "SELECT topic_id, uid, body, `key`, tag FROM ems_outbox) m JOIN ems_topic t ON t.id = m.topic_id "
        "WHERE t.name = %s ORDER BY m.uid",
        EVENTS_TOPIC,
    )
    found = [json.loads(body) for body, _, _ in rows]
    assert [one["state"] for one in found] == [bytes(tag).decode() for _, _, tag in rows]
    return found


def _states(stream: Stream, key: str) -> list[str]:
    return [one["state"] for one in _events(stream) if one["flow"] == key]


def _create(shop: Ems) -> None:
    Admin(shop).create_topic(EVENTS_TOPIC)


def test_each_change_is_an_event(stream: Stream, shop: Ems) -> None:
    flows.telling.start(1, id="before")
    _create(shop)
    stream.worker("tests.flows.shop:app")
    assert flows.parent.start(1, id='Ünder "parent"').get(60)
    assert flows.telling_on.start(id="told").state
    until(lambda: _states(stream, "told") == ["ready", "waiting"], 60, stream.logs())
    shop.signal("told", "go")
    until(lambda: _states(stream, "told") == ["ready", "waiting", "done"], 60, stream.logs())
    ready, waiting, done = (one for one in _events(stream) if one["flow"] == "told")
    assert waiting["waits"] == "signal go" and done["waits"] is None and done["error"] is None
    assert {one["name"] for one in (ready, waiting, done)} == {flows.telling_on.name}
    assert ready["started_at"] == ready["at"] == done["started_at"] < waiting["at"] < done["at"]
    with pytest.raises(FlowFailed):
        flows.failing.start(1, at="own", id="failing").get(60)
    failed = [one for one in _events(stream) if one["flow"] == "failing"]
    assert [one["state"] for one in failed][-1] == "failed" and failed[-1]["error"] == "RuntimeError"
    assert _states(stream, 'Ünder "parent"')[-1] == "done"
    keys = stream.rows(
        "SELECT COUNT(DISTINCT m.`partition`), COUNT(*) > 1 FROM ems_message m JOIN ems_topic t ON t.id = m.topic_id "
        "WHERE t.name = %s AND m.kind = 'message' GROUP BY m.`key`",
        EVENTS_TOPIC,
    )
    assert {partitions for partitions, _ in keys} == {1}, "in their order"


def test_a_cancel_and_a_retry_are_events_of_each_flow(stream: Stream, shop: Ems) -> None:
    _create(shop)
    stream.worker("tests.flows.shop:app")
    handle = flows.grandparent.start(id="g")
    until(lambda: stream.rows("SELECT COUNT(*) FROM ems_flow WHERE state = 'waiting'") == [(4,)], 60, stream.logs())
    with users(stream.server, stream.url) as make:
        before = shop.settings.url
        shop.close()
        shop.reconfigure(url=make("operator"))
        assert shop.find_flow("g").cancel()
        shop.close()
        shop.reconfigure(url=before)
    assert sum(one["state"] == "cancelled" for one in _events(stream)) == 4
    assert handle.retry()
    until(lambda: _states(stream, "g") == ["ready", "waiting", "cancelled", "ready", "waiting"], 60, stream.logs())


def test_a_start_that_is_rolled_back_is_no_event(stream: Stream, shop: Ems) -> None:
    _create(shop)
    with users(stream.server, stream.url) as make:
        before = shop.settings.url
        shop.reconfigure(url=make("producer", ["auto-create"]))
        with other(stream) as connection:
            flows.waits.start(id="gone", transaction=connection)
            connection.rollback()
        flows.waits.start(id="f")
        assert not flows.waits.start(id="f").created
        flows.noted.start(1, id="doc", debounce="1m")
        flows.noted.start(2, id="doc", debounce="1m")
        shop.close()
        shop.reconfigure(url=before)
    assert [(one["flow"].partition("/")[0], one["state"], one["waits"]) for one in _events(stream)] == [
        ("f", "ready", None),
        ("doc", "waiting", "debounce"),
    ]


def test_a_failure_that_the_beat_finds_is_an_event(stream: Stream, shop: Ems) -> None:
    _create(shop)
    flows.waits.start(id="f")
    flow: Sequence[Any] = stream.rows("SELECT id, owner FROM ems_flow")[0]
    with users(stream.server, stream.url) as make:
        database = Database(make("beat"))
        watch = WatchFlows(quiet_s=0.0)
        found = OpenFlow(flow[0], "ready", 0, flow[1], 1, None, False, True)
        args = {"flow_id": found.id, "error_type": "E", "error": "e", "run": 0, "state": "ready", "owner": flow[1]}
        assert database.call(
            lambda session: session.transaction(
                lambda session: watch._fail(session, found, args, StoredError("E", "e"))
            )
        )
    assert _states(stream, "f") == ["ready", "failed"]
