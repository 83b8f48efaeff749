"""Rows that the server packs by columns are the rows of the table, value by value, whatever they hold."""

import json
import re
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from emsworker.arrow import explain_read, scan
from emsworker.core.offsets import OffsetRange
from emsworker.store.engine.database import Database
from tests.support.streams import Stream

pa = pytest.importorskip("pyarrow")

from emsworker.arrow import batches  # noqa: E402
from emsworker.arrow.columns import COLUMNS, arrow_schema  # noqa: E402
from emsworker.arrow.packed import unpack  # noqa: E402
from emsworker.arrow.planning import Slice  # noqa: E402
from emsworker.arrow.profile import closing_session  # noqa: E402
from emsworker.core.model import Group  # noqa: E402

_few = partial(
    settings,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
_TIMES = st.datetimes(datetime(1000, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999))
_BYTES = st.one_of(
    st.sampled_from([b"", b"\n", b",", b"1,2\n", b"\0", "é😀".encode(), b"\xff\xfe"]), st.binary(max_size=300)
)
_SHORT = st.binary(max_size=255)
_HEADERS = st.dictionaries(
    st.text(st.characters(codec="utf-8"), max_size=9), st.text(st.characters(codec="utf-8"), max_size=9), max_size=3
)
_KINDS = st.sampled_from(["message"] * 6 + ["tombstone", "cancelled"])
_MESSAGE = st.tuples(
    st.integers(1, 40), _KINDS, st.none() | _SHORT, st.none() | _SHORT, _HEADERS, _BYTES, st.integers(0, 2**32 - 1),
    _TIMES, st.text("az-0", max_size=128), st.binary(min_size=16, max_size=16),
)  # fmt: skip
_INSERT = """INSERT IGNORE INTO ems_message
(topic_id, `partition`, `offset`, kind, `key`, tag, headers, body, size, born_at, producer_id, uid)
VALUES (%s, 0, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"""


def _row(drawn: tuple[Any, ...]) -> tuple[Any, ...]:
    offset, kind, key, tag, headers, body, size, born, producer, uid = drawn
    return offset, kind, key, tag, json.dumps(headers).encode() if headers else b"", body, size, born, producer, uid


@given(st.data())
@_few(max_examples=25)
def test_random_messages_are_equal_however_they_are_read(stream: Stream, data: st.DataObject) -> None:
    """Three ways: packed, row by row, and by a statement of the test's own."""
    topic = int(stream.value("SELECT COALESCE(MAX(topic_id), 0) + 1 FROM ems_message"))
    rows = [(topic, *_row(drawn)) for drawn in data.draw(st.lists(_MESSAGE, max_size=30))]
    with stream.sql.cursor() as cursor:
        cursor.executemany(_INSERT, rows)
    cancelled, tombstones = data.draw(st.booleans()), data.draw(st.booleans())
    names = data.draw(st.lists(st.sampled_from(sorted(COLUMNS["messages"])), min_size=1, unique=True))
    chosen = {
        "cancelled": cancelled,
        "tombstones": tombstones,
        "fetch_bytes": data.draw(st.sampled_from([1, 50, 700, 1 << 20])),
    }
    one = Slice(OffsetRange(topic, 0, 1, 41), "t")
    schema = arrow_schema("messages", names)
    with closing_session(Database(stream.url)) as database:
        read = list(batches.read_from(database, "messages", schema, one, **chosen))
    found = pa.Table.from_batches(read, schema).to_pylist()
    by_row = batches.Batches("messages", schema, one.constants)
    fetched = scan.fetch_rows(stream.session, one.query("messages", by_row.columns, **chosen), one.offsets)
    assert found == by_row.batch_of(fetched.rows).to_pylist()
    kinds = {"message"} | ({"cancelled"} if cancelled else set()) | ({"tombstone"} if tombstones else set())
    stored = stream.rows(
        "SELECT kind, `key`, IF(kind = 'cancelled', '', body), `offset`, born_at, tag, producer_id, headers "
        "FROM ems_message WHERE topic_id = %s ORDER BY `offset`",
        topic,
    )
    plain = dict(
        zip(("kind", "key", "value", "offset", "timestamp", "tag", "producer", "rawHeaders"), range(8), strict=True)
    )
    shared = [name for name in names if name in plain]
    assert [tuple(_plain(row[name]) for name in shared) for row in found] == [
        tuple(row[plain[name]] for name in shared) for row in stored if row[0] in kinds
    ]


def _plain(value: Any) -> Any:
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def test_the_log_of_a_group_is_equal_too(stream: Stream) -> None:
    """With NULL where the tables allow it, several rows of one offset, and text of every kind."""
    text = "'é😀,'"
    if "mariadb" in str(stream.value("SELECT VERSION()")).lower():
        text = "_utf8mb4 X'61EDA080622C0A'"  # half of a surrogate pair, which MariaDB stores
    for number in range(1, 30):
        at = datetime(2026, 1, 1) + timedelta(microseconds=number * 977)
        odd = "NULL" if number % 3 else text
        for twice in (2, 1):
            stream.rows(
                "INSERT INTO ems_claim (group_id, `partition`, lo, claim_id, hi, acked_to, state, source, client_id, "
                "claimed_at, progress_at, deadline_at) VALUES (7, 0, %s, %s, %s, 0, 'done', 'retry', %s, %s, %s, %s)",
                *(number, twice, number, None if number % 2 else "c", at, at, at),
            )
            stream.rows(
                "INSERT INTO ems_attempt (group_id, `partition`, `offset`, ended_at, attempt, outcome, ran_ms, error) "
                f"VALUES (7, 0, %s, %s - INTERVAL %s SECOND, %s, 'failed', %s, {odd})",
                *(number, at, twice, twice, None if number % 2 else 1 << 62),
            )
        stream.rows(
            "INSERT INTO ems_retry (group_id, `partition`, `offset`, attempt, due_at, `key`, last_error) "
            f"VALUES (7, 0, %s, 1, %s, %s, {odd})",
            *(number, datetime(9999, 1, 1) if number % 2 else at, None if number % 4 else b"k"),
        )
        stream.rows(
            "INSERT INTO ems_dead (group_id, `partition`, `offset`, uid, headers, body, born_at, producer_id, dead_at, "
            f"attempts, reason, error) VALUES (7, 0, %s, REPEAT('u', 16), '', 'b', %s, 'p', %s, 3, {text}, '')",
            *(number, at, at),
        )
    group = Group(id=7, topic_id=1, name="g")
    for dataset in ("claims", "attempts", "retries", "deadletters"):
        schema = arrow_schema(dataset, tuple(COLUMNS[dataset]))
        one = Slice(OffsetRange(1, 0, 0, 100), "t", group)
        by_row = batches.Batches(dataset, schema, one.constants)
        rows = scan.fetch_rows(stream.session, one.query(dataset, by_row.columns), one.offsets).rows
        read = batches.read_from(Database(stream.url), dataset, schema, one, fetch_bytes=300)
        found = pa.Table.from_batches(read, schema).to_pylist()
        assert found == by_row.batch_of(rows).to_pylist(), dataset
        assert len(found) == (58 if dataset in ("claims", "attempts") else 29)


@given(st.lists(st.tuples(st.integers(-9, 9), st.none() | st.binary(max_size=5), st.binary(max_size=3))), st.data())
@_few(max_examples=200)
def test_what_is_cut_is_noticed_and_what_is_not_is_put_in_order(rows: list[Any], data: st.DataObject) -> None:
    lines = b"".join(b"%d,%s,%d\n" % (n, b"" if a is None else b"%d" % len(a), len(b)) for n, a, b in rows)
    whole = [lines, b"".join(a or b"" for _, a, _ in rows), b"".join(b for _, _, b in rows)]
    most = data.draw(st.integers(0, 40))
    cut = [value[: data.draw(st.integers(0, len(value)))] if data.draw(st.booleans()) else value for value in whole]
    packed = scan.Packed(OffsetRange(1, 0, 1, 2), len(rows), ("offset",), cut[0], {"a": cut[1], "b": cut[2]}, 1)
    found = unpack(packed, most, ("offset",))
    assert 0 <= found.complete <= len(rows)
    if cut != whole or sum(map(len, whole[1:])) > most:
        assert found.complete < len(rows) and not found.columns
        return
    assert found.complete == len(rows)
    every = list(zip(*(found.columns[name].to_pylist() for name in ("offset", "a", "b")), strict=True))
    assert [row[0] for row in every] == sorted(row[0] for row in rows)
    assert sorted(every, key=repr) == sorted(rows, key=repr)


def test_a_fetch_is_bounded_by_bytes_whatever_the_server_allows(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = stream.app()
    topic = stream.topic("t")
    app.send_many("t", [b"x" * (200_000 if n % 100 == 50 else 100) for n in range(3000)])
    schema = arrow_schema("messages", ("offset", "value"))

    def read(start: int, end: int, **chosen: int) -> list[Any]:
        one = Slice(OffsetRange(topic.id, 0, start, end), "t")
        return list(batches.read_from(Database(stream.url), "messages", schema, one, **chosen))

    parts = read(1, 3001, fetch_bytes=500_000)
    assert [offset for part in parts for offset in part["offset"].to_pylist()] == list(range(1, 3001))
    assert max(sum(map(len, part["value"].to_pylist())) for part in parts) <= 500_000
    assert [part.num_rows for part in read(45, 55, fetch_bytes=1)] == [1] * 10
    fetch = scan.fetch_packed
    monkeypatch.setattr(  # a server whose max_allowed_packet is less
        scan,
        "fetch_packed",
        lambda session, query, offsets: fetch(session, replace(query, fetch_bytes=1 << 20), offsets),
    )
    parts = read(1, 3001)
    assert [offset for part in parts for offset in part["offset"].to_pylist()] == list(range(1, 3001))
    assert 100_000 < max(sum(map(len, part["value"].to_pylist())) for part in parts) <= 1 << 20


def test_columns_for_which_the_server_does_not_look_for_null_have_none(stream: Stream) -> None:
    """A NULL would leave its place in a line out, and all numbers after it would be those of other columns."""
    found = stream.rows(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = DATABASE() "
        "AND is_nullable = 'YES'"
    )
    nullable = {(str(table), str(column)) for table, column in found}
    assert ("ems_message", "key") in nullable
    tables = {"messages": "ems_message", "attempts": "ems_attempt", "retries": "ems_retry", "deadletters": "ems_dead"}
    for dataset, table in tables.items():
        taken = scan._NEVER_NULL & COLUMNS[dataset].keys()
        words = {word for name in taken for word in re.findall(r"\w+", scan._SQL[f"{dataset}_{name}"])}
        assert "offset" in words and not {(table, word) for word in words} & nullable


def test_a_read_is_explained(named: Stream) -> None:
    named.topic("t", partitions=2)
    named.app().send_many("t", ["x"] * 9, key="a")
    number = named.value("SELECT MAX(`partition`) FROM ems_message WHERE `offset` = 9")
    text = explain_read(subscribe="t", columns=["topic", "value"], filters=[("offset", ">", 4)], limit=3)
    assert text.splitlines() == [
        "dataset: messages",
        "pushed to the server: offset > 4, limit 3",
        "fetched: value; packed by the server by columns, up to 8,388,608 bytes at once; a longer row alone",
        "constant: topic",
        f"t/{number}, server main: offsets 5 to 9",
    ]
