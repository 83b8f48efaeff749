"""Flows against SQL of somebody who has the rights of a producer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from emsworker import Ems
from emsworker.core.config import Settings
from emsworker.core.errors import AccessDenied, StatementRefused
from emsworker.flows import TooManySignals
from emsworker.flows.operating.admin import FlowFilter, Flows, change_all
from emsworker.flows.operating.watching import WatchFlows
from emsworker.flows.rows import MOST_SIGNAL_BYTES, MOST_SIGNALS
from emsworker.flows.store.flow_store import MysqlFlowStore
from emsworker.flows.stores import store_for
from emsworker.local import LocalDatabase
from emsworker.store.engine.database import Database
from tests.flows import shop as flows
from tests.process.stream import Stream
from tests.support.commands import Ems as Command
from tests.support.roles import users
from tests.support.servers import connect
from tests.support.waiting import until

_COLUMNS = "`key`, name, version, topic_id, state, owner, headers, args, started_at, changed_at"
_VALUES = "'tests.flows.shop.waits', 1, 1, 'ready', 'o', '{}', '[[],{}]', NOW(6), NOW(6)"
_LAST = (1 << 64) - 2
_DENIED = (1142, 1143)
_UNSOUND = (3819, 4025)


@pytest.fixture
def hostile(stream: Stream) -> Iterator[Any]:
    """A cursor with the rights of a producer."""
    with users(stream.server, stream.url) as make, connect(make("producer"), autocommit=True) as connection:
        yield connection.cursor()


def _error(cursor: Any, text: str) -> int:
    with pytest.raises(pymysql.err.MySQLError) as found:
        cursor.execute(text)
    return int(found.value.args[0])


def test_a_producer_does_not_use_up_the_numbers_of_rows(stream: Stream, shop: Ems, hostile: Any) -> None:
    flows.waits.start(id="w")
    for text in (
        f"INSERT INTO ems_flow (id, {_COLUMNS}) VALUES ({_LAST}, 'f', {_VALUES})",
        f"INSERT INTO ems_flow_signal (id, flow_id, uid, name, value, sent_at) VALUES ({_LAST}, 1, 'u', 'go', '1', NOW(6))",
        f"UPDATE ems_flow SET id = {_LAST}",
        f"INSERT INTO ems_flow ({_COLUMNS}, run) VALUES ('f', {_VALUES}, 4294967295)",
        f"INSERT INTO ems_flow ({_COLUMNS}, parent) VALUES ('f', {_VALUES}, '1.1.0')",
        "INSERT INTO ems_flow_signal (flow_id, uid, name, value, sent_at, step) VALUES (1, 'u', 'go', '1', NOW(6), 1)",
        "SELECT value FROM ems_flow_signal",
    ):
        assert _error(hostile, text) in _DENIED, text
    shop.signal("w", "go", 1)
    assert flows.waits.start(id="x").created


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("parent", "'garbage'"),
        ("parent", "'1.2'"),
        ("run", "4294967295"),
        ("next_step", "4294967295"),
        ("started_at", "'0000-00-00'"),
        ("deadline_at", "'0000-00-00'"),
        ("state", "'no such'"),
        ("`key`", "NULL"),
    ],
)
def test_a_row_that_no_program_can_read_is_refused(stream: Stream, shop: Ems, column: str, value: str) -> None:
    flows.waits.start(id="w")
    with connect(stream.url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = ''")  # as a producer may, who wants zero dates and no states
        assert _error(cursor, f"UPDATE ems_flow SET {column} = {value}") in _UNSOUND


@pytest.mark.parametrize("error", [ValueError("invalid literal"), StatementRefused("(1264) Out of range")])
def test_one_bad_flow_does_not_keep_the_others_from_being_cancelled(
    stream: Stream, shop: Ems, error: Exception
) -> None:
    for key in ("a", "b", "c"):
        flows.waits.start(id=key)
    opened = Flows(Database(stream.url))

    def cancel(key: str) -> bool:
        if key == "b":
            raise error
        return opened.cancel(key)

    assert change_all(opened, FlowFilter(states=("ready",)), cancel) == (2, {"b": str(error)})
    states = stream.rows("SELECT `key`, state FROM ems_flow ORDER BY id")
    assert states == [("a", "cancelled"), ("b", "ready"), ("c", "cancelled")]


def test_what_is_true_of_all_flows_ends_the_command(stream: Stream, shop: Ems) -> None:
    flows.waits.start(id="a")
    with users(stream.server, stream.url) as make, pytest.raises(AccessDenied):
        opened = Flows(Database(make("reader")))
        change_all(opened, FlowFilter(states=("ready",)), opened.cancel)


# -- signals -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(shop: Ems) -> MysqlFlowStore:
    found = store_for(shop, "default")
    assert isinstance(found, MysqlFlowStore)
    return found


def _give(stream: Stream, count: int, value: str = "'1'", name: str = "other") -> None:
    rows = ", ".join(f"(1, '{os.urandom(8).hex()}', '{name}', {value}, NOW(6))" for _ in range(count))
    stream.run(f"INSERT INTO ems_flow_signal (flow_id, uid, name, value, sent_at) VALUES {rows}")


def test_a_flow_is_given_no_more_signals_than_it_can_load(stream: Stream, shop: Ems) -> None:
    flows.waits.start(id="w")
    assert stream.rows("SELECT id FROM ems_flow") == [(1,)]
    _give(stream, MOST_SIGNALS - 1)
    shop.signal("w", "go", 1)
    with pytest.raises(
        TooManySignals, match=rf"not taken {MOST_SIGNALS} signals of \d+ bytes; at most {MOST_SIGNALS} wait"
    ):
        shop.signal("w", "go", 1)
    with shop.transaction() as transaction, pytest.raises(TooManySignals):
        shop.signal("w", "go", 1, transaction=transaction)
    stream.run("UPDATE ems_flow_signal SET step = id")
    shop.signal("w", "go", 1)  # those that were taken do not count


def test_the_signals_of_a_flow_have_a_size_together(stream: Stream, shop: Ems) -> None:
    flows.waits.start(id="w")
    _give(stream, MOST_SIGNAL_BYTES >> 20, "REPEAT('1', 1048576)")
    with pytest.raises(TooManySignals, match=f"of 1 bytes was not given to flow 'w', .* {MOST_SIGNAL_BYTES} bytes"):
        shop.signal("w", "go", 1)


def test_large_values_of_signals_are_read_when_they_are_taken(stream: Stream, shop: Ems, store: MysqlFlowStore) -> None:
    flow = flows.waits.start(id="w")
    shop.signal("w", "go", "x" * 5000)
    shop.signal("w", "other", "y" * 5000)
    row = store.find("w")
    assert row is not None
    loaded = store.begin(row.id, row.owner)
    assert loaded is not None and [one.value for one in loaded.signals] == [None, None]
    stream.run("UPDATE ems_flow SET state = 'ready'")
    stream.worker("tests.flows.shop:app")
    assert flow.get(60) == "x" * 5000


def test_a_run_loads_a_bounded_number_of_signals(stream: Stream, shop: Ems, store: MysqlFlowStore) -> None:
    """Also if plain SQL has given more; one beyond them is not waited for in a loop that never ends."""
    flow = flows.waits.start(id="w")
    for _ in range(10):
        _give(stream, 1000)
    _give(stream, 2, name="go")
    row = store.find("w")
    assert row is not None
    loaded = store.begin(row.id, row.owner)
    assert loaded is not None and len(loaded.signals) == 10_000 and {one.name for one in loaded.signals} == {"other"}
    stream.run("UPDATE ems_flow SET state = 'ready'")
    stream.worker("tests.flows.shop:app")
    until(lambda: flow.state == "waiting", 60, stream.logs())
    runs = stream.one("SELECT run FROM ems_flow")
    assert runs <= 4


# -- bytes that are no values ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [b"\xff\xfe{", b"[" * 200_000, b"5", b'{"a": 1}'])
def test_values_that_cannot_be_decoded_are_shown_as_a_problem(
    stream: Stream, shop: Ems, server: LocalDatabase, tmp_path: Path, raw: bytes
) -> None:
    flow = flows.waits.start(id="w")
    with connect(stream.url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE ems_flow SET args = %s, value = %s", (raw, raw))
        cursor.execute(
            "INSERT INTO ems_flow_step (flow_id, step, kind, name, value, began_at, ended_at) "
            "VALUES (1, 1, 'wait', 'go', %s, NOW(6), NOW(6))",
            (raw,),
        )
        cursor.execute(
            "INSERT INTO ems_flow_value (flow_id, number, value, emitted_at) VALUES (1, 1, %s, NOW(6))", (raw,)
        )
    with users(server, stream.url) as make:
        reader = make("reader")
        command = Command({"EMS_URL": reader}, tmp_path)
        shown = command.ok("flows", "show", "w", "--json").json
        command.ok("flows", "show", "w")
        command.ok("flows", "show", "w", "--values")
        (emitted,) = command.ok("flows", "show", "w", "--values", "--json").json
        assert shown["args"] is None and shown["problem"]
        assert shown["steps"][0]["value"] == emitted["value"]
        assert (emitted["problem"] is None) == (raw in (b"5", b'{"a": 1}')), "these are values, and no arguments"
        _shown_by_the_dashboard(reader, emitted["problem"])
    assert flow.state == "ready"


def _shown_by_the_dashboard(url: str, problem: str | None) -> None:
    pytest.importorskip("starlette")
    from starlette.testclient import TestClient

    from emsworker.web import Visitor, ems_web

    client = TestClient(ems_web(url, access=lambda request: Visitor("ann", "reader")), "http://localhost")
    page = client.get("/flows/one/w")
    assert page.status_code == 200
    assert problem is None or problem.partition("'")[0] in page.text
    if problem is not None:
        with client.stream("GET", "/flows/values/w") as events:
            first = next(line for line in events.iter_lines() if line.startswith("event"))
        assert first == "event: problem"


def test_other_arguments_that_cannot_be_decoded_are_told(stream: Stream, shop: Ems) -> None:
    from emsworker.flows import FlowExists

    flows.waits.start(id="w")
    with connect(stream.url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE ems_flow SET args = %s", (b"\xff",))
    with pytest.raises(FlowExists, match=r"with other arguments: \\xff"):
        flows.waits.start(id="w")


# -- topics that are none ----------------------------------------------------------------------------------------------


def test_a_flow_of_no_topic_fails_and_says_so(stream: Stream, shop: Ems) -> None:
    flows.waits.start(id="w")
    stream.run("UPDATE ems_flow SET topic_id = 4711, changed_at = NOW(6) - INTERVAL 1 HOUR")
    with Database(stream.url).session() as session:
        WatchFlows(pause_s=0.0)(session, Settings())
    ((state, kind, error),) = stream.rows("SELECT state, error_type, error FROM ems_flow")
    assert (state, kind) == ("failed", "UnknownTopic") and "was deleted" in error


def test_a_flow_of_no_topic_can_be_cancelled(stream: Stream, shop: Ems) -> None:
    flows.waits.start(id="w")
    stream.run("UPDATE ems_flow SET topic_id = 4711")
    assert Flows(Database(stream.url)).cancel("w")
    assert json.dumps(stream.rows("SELECT state FROM ems_flow")) == '[["cancelled"]]'
