"""A connection prepares the statement of its single sends: rows, errors and lost answers are as those of text."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pymysql.constants import COMMAND

from emsworker import Ems
from emsworker.core.errors import TopicDeleted, UnknownTopic
from emsworker.store.engine.prepared import AFTER
from tests.support import rows
from tests.support.proxy import Cut, proxied
from tests.support.streams import Stream, stored
from tests.support.waiting import until

_MARK = b"a body that no statement has"


def _prepare(app: Ems) -> Any:
    """Send until the connection has prepared the statement, and return the connection."""
    for number in range(AFTER + 3):  # the first send asks the counter
        app.send("t", number)
    connection = app.stream.producer._session._connection
    assert connection is not None
    assert [one is not None for one in connection.prepared._prepared.values()] == [True]
    return connection


def test_what_is_prepared_writes_the_rows_that_text_writes(stream: Stream) -> None:
    app = stream.app(allocator="mysql")
    sent: list[dict[str, Any]] = [
        {"body": 1},
        {"body": "", "key": "", "tag": b"\xff\x00'"},
        {"body": "ä'\\\0", "key": "ä", "headers": {"a": "ü'\\"}},
        {"body": b"\0" * 0xFA, "tag": "t"},
        {"body": b"\1" * 0xFB, "key": b"k" * 255},
        {"body": b"\2" * 0x10000},
    ]
    for options in sent:
        app.send("t", **options)
    _prepare(app)
    for options in sent:
        app.send("t", **options)
    columns = "`key`, tag, headers, body, size, producer_id, kind, total_size"
    found = stream.rows(f"SELECT {columns} FROM ems_message WHERE `offset` > 0 ORDER BY `offset`")
    assert found[: len(sent)] == found[-len(sent) :]
    assert stored(stream, "t") == {0: [*range(1, len(found) + 1)]}


def test_who_looks_at_the_processes_of_the_server_can_read_what_is_prepared(stream: Stream) -> None:
    """MySQL refuses ``information_schema.PROCESSLIST`` as a whole if one statement in it holds bytes that are no text."""
    app = stream.app(allocator="mysql")
    _prepare(app)
    look = "SELECT INFO FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND ID <> CONNECTION_ID()"
    with contextlib.closing(stream.other()) as other, other.cursor() as cursor, ThreadPoolExecutor(1) as pool:
        cursor.execute("SELECT * FROM ems_partition FOR UPDATE")
        sent = pool.submit(app.send, "t", b"\xff\xfe\x80", tag=b"\xff")
        shown = until(lambda: [info for (info,) in stream.rows(look) if info], 10, "the send waits")
        assert any("INSERT INTO ems_message" in info for info in shown)
        assert stream.rows("SHOW FULL PROCESSLIST")
        other.rollback()
        assert sent.result(10).offset


def test_what_is_prepared_is_refused_as_text_is(stream: Stream) -> None:
    app, other = stream.app(allocator="mysql"), stream.app(allocator="mysql")
    connection = _prepare(app)
    end = AFTER + 3
    assert other.send("t", 0).offset == end + 1
    assert app.send("t", 0).offset == end + 2, "its place was taken"
    uid = app.send("t", 0).id
    assert not app.send("t", 0, uid=uid).created
    rows.trim(stream.rows, 1000)
    app.stream.producer._allocator.landed(stream.value("SELECT id FROM ems_topic WHERE name = 't'"), 0, 4, 1)
    assert app.send("t", 0).offset == 1000, "nobody publishes below a log start offset"
    assert app.stream.producer._session._connection is connection, "none of these is an error of the connection"


@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())
def test_a_prepared_send_whose_answer_is_lost_is_one_row(stream: Stream, cut: Cut) -> None:
    with proxied(stream.url) as (proxy, url):
        app = stream.app(url=url, allocator="mysql")
        _prepare(app)
        proxy.arm(_MARK.hex().encode(), cut)
        receipt = app.send("t", _MARK)
        assert receipt.created and proxy.cuts == 1
        assert stream.rows("SELECT `offset` FROM ems_message WHERE body = %s", _MARK) == [(receipt.offset,)]
        assert app.send("t", 0).offset == receipt.offset + 1, "over another connection, which has prepared nothing"
        app.close()


def test_a_server_that_does_not_prepare_is_sent_text(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    app = stream.app(allocator="mysql")
    app.send("t", 0)
    connection = app.stream.producer._session._connection
    assert connection is not None
    refused = connection._prepare("no statement ?")
    assert refused is None and connection.open and not connection.cut
    monkeypatch.setattr(connection.prepared, "_prepare", lambda text: None)
    for number in range(AFTER + 3):
        app.send("t", number)
    assert [*connection.prepared._prepared.values()] == [None]
    assert stored(stream, "t") == {0: [*range(1, AFTER + 5)]}


def test_a_server_that_has_forgotten_the_statement_is_sent_text(stream: Stream) -> None:
    app = stream.app(allocator="mysql")
    connection = _prepare(app)
    (prepared,) = connection.prepared._prepared.values()
    connection._execute_command(COMMAND.COM_STMT_CLOSE, prepared.head[:4])  # it is not answered
    connection.in_exchange = False
    for number in range(3):
        app.send("t", number)
    assert app.stream.producer._session._connection is connection
    assert stored(stream, "t") == {0: [*range(1, AFTER + 7)]}


def test_a_topic_that_was_deleted_is_noticed(stream: Stream) -> None:
    app = stream.app(allocator="mysql", auto_create=False)
    stream.topic("t")
    _prepare(app)
    topic_id = stream.value("SELECT id FROM ems_topic WHERE name = 't'")
    stream.rows("DELETE FROM ems_partition WHERE topic_id = %s", topic_id)
    stream.rows("DELETE FROM ems_topic WHERE id = %s", topic_id)
    with pytest.raises((TopicDeleted, UnknownTopic)):
        app.send("t", 0)
