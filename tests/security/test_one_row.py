"""A row that a publisher writes by plain SQL, whatever is in it, stops no other one."""

import json
import logging
import uuid
from typing import Any

import pymysql
import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from emsworker.admin import Admin
from emsworker.beat.relay import Relay
from emsworker.cli.main import ems as cli
from emsworker.core.config import Settings
from emsworker.core.model import Topic
from emsworker.core.selection.filters import EVERYTHING
from emsworker.local import LocalDatabase
from emsworker.observe.logs import JsonFormatter, TextFormatter
from emsworker.store.groups import claims
from emsworker.store.stream import broadcast, forwards, outbox
from emsworker.web import Visitor, ems_web
from tests.support import rows
from tests.support.servers import set_globals
from tests.support.streams import Stream, offsets

_MIB = 1 << 20


def _wait(stream: Stream, topic: Topic, number: int, body: bytes = b"1", **columns: Any) -> None:
    """Write a message into the outbox; by their numbers they are due one after the other, and all are."""
    row = {"headers": b"", "body": body, "partition": None, "key": None, "level": 0, **columns}
    stream.rows(
        "INSERT INTO ems_outbox (topic_id, due_at, uid, `partition`, `key`, headers, body, producer_id, created_at, level) "
        "VALUES (%s, NOW(6) - INTERVAL 1 HOUR + INTERVAL %s SECOND, %s, %s, %s, %s, %s, '', NOW(6), %s)",
        *(topic.id, number, uuid.UUID(int=number).bytes, row["partition"], row["key"], row["headers"], row["body"]),
        row["level"],
    )


def _bodies(stream: Stream) -> list[bytes]:
    return [body for (body,) in stream.rows("SELECT body FROM ems_message WHERE `offset` > 0 ORDER BY `offset`")]


def _relay(stream: Stream) -> None:
    relay = Relay()
    while relay(stream.session, Settings()) == 0.0:
        pass


def test_a_message_for_a_partition_that_is_not_there_is_set_aside(stream: Stream) -> None:
    topic = stream.topic(partitions=1)
    _wait(stream, topic, 1, b"first")
    _wait(stream, topic, 2, b'{"a": "\xc3\xbc"}', partition=7, key=b"k", headers=b'{"a":"b"}')
    _wait(stream, topic, 3, b"\xff\xfe", level=200, key=b"\xff", headers=b"x" * 70_000)
    _wait(stream, topic, 4, b"last", key=b"\xff")
    _relay(stream)
    assert _bodies(stream) == [b"first", b"last"]
    assert stream.value("SELECT COUNT(*) FROM ems_outbox") == 0
    found = stream.rows("SELECT topic, CONVERT(body USING binary), headers, uid, error FROM ems_publish ORDER BY uid")
    assert [row[:4] for row in found] == [
        ("t", b'{"a": "\xc3\xbc"}', '{"a":"b"}', uuid.UUID(int=2).hex.upper()),
        ("t", b"FFFE", None, uuid.UUID(int=3).hex.upper()),
    ]
    assert "topic 't' has no partition 7" in found[0][4] and "no partition 200000" in found[1][4]
    admin = Admin(stream.app())
    assert admin.refused.count() == 2 and admin.refused.retry() == 2
    _relay(stream)
    assert _bodies(stream) == [b"first", b"last", b'{"a":"\\u00fc"}'], "it has lost its partition"
    assert [row.error[:6] for row in admin.refused.list() if row.error] == ["body ="]


def test_many_of_them_are_set_aside_together(stream: Stream) -> None:
    topic = stream.topic()
    for number in range(1, 251):
        _wait(stream, topic, number, partition=9)
    _wait(stream, topic, 999, b"last")
    assert Relay()(stream.session, Settings()) == 0.0
    assert Relay()(stream.session, Settings()) > 0.0, "one round for all of them, one for the rest"
    assert _bodies(stream) == [b"last"] and stream.value("SELECT COUNT(*) FROM ems_publish") == 250


def test_what_is_too_large_for_a_packet_is_moved_by_the_server(stream: Stream, server: LocalDatabase) -> None:
    topic = stream.topic()
    _wait(stream, topic, 1, b"x" * (6 * _MIB), headers=b"y" * (6 * _MIB))
    _wait(stream, topic, 2, b"last")
    before = stream.value("SELECT @@GLOBAL.max_allowed_packet")
    set_globals(server, f"SET GLOBAL max_allowed_packet = {4 * _MIB}")
    try:
        with stream.new_session() as session:
            assert session.most_bytes < 6 * _MIB
            (due,) = outbox.find_due(session).due
            assert outbox.relay(session, due, 500).count == 2
    finally:
        set_globals(server, f"SET GLOBAL max_allowed_packet = {before}")
    assert stream.rows("SELECT size, total_size FROM ems_message WHERE `offset` = 1") == [(6 * _MIB, 12 * _MIB)]
    assert _bodies(stream)[1] == b"last"


def test_what_the_server_refuses_is_found_by_halving_and_set_aside(stream: Stream) -> None:
    topic = stream.topic()
    for number in range(1, 20):
        _wait(stream, topic, number, b"bad" if number in (4, 5, 17) else b"good")
    stream.rows("ALTER TABLE ems_message ADD CONSTRAINT no_bad CHECK (body <> 'bad')")
    _relay(stream)
    assert _bodies(stream) == [b"good"] * 16
    errors = stream.rows("SELECT error FROM ems_publish")
    assert len(errors) == 3 and all("the server refused" in error for (error,) in errors)


def test_a_round_moves_16_mib(stream: Stream) -> None:
    topic = stream.topic()
    for number in range(1, 6):
        _wait(stream, topic, number, b"x" * (7 * _MIB))
    (due,) = outbox.find_due(stream.session).due
    assert [outbox.relay(stream.session, due, 500) for _ in range(4)] == [
        outbox.Relayed(2, True), outbox.Relayed(2, True), outbox.Relayed(1, False), outbox.Relayed(0, False),
    ]  # fmt: skip


def test_headers_count_among_what_is_read_at_once(stream: Stream) -> None:
    """Whoever inserts rows by plain SQL says what `size` is, and had headers of any size read whole."""
    app, topic = stream.app(), stream.topic()
    app.send_many("t", range(6))
    stream.rows("UPDATE ems_message SET headers = REPEAT('x', %s), size = 0 WHERE `offset` IN (2, 3)", 3 * _MIB)
    stream.rows("UPDATE ems_message SET body = REPEAT('x', %s), size = 0 WHERE `offset` IN (5)", 5 * _MIB)
    group, me = stream.group(topic), stream.client()
    assert [offsets(stream.take(topic, group, me)) for _ in range(4)] == [[1, 2], [3, 4], [5], [6]]
    read = [broadcast.read(stream.session, topic, 0, start, 9, 4 * _MIB, EVERYTHING) for start in (1, 3, 5)]
    assert [[row[0] for row in one.rows] for one in read] == [[1, 2], [3, 4], [5]]
    assert broadcast.read_few(stream.session, topic, 0, range(3, 4), 2 * _MIB) is None
    ordered = stream.group(topic, "ordered", order="partition")
    assert offsets(stream.take(topic, ordered, me)) == [1, 2]
    for number in range(1, 6):
        _wait(stream, topic, number, headers=b"x" * (3 * _MIB))
    assert [len(one.headers) for one in forwards.read(stream.session, topic.id, 200, 7 * _MIB)] == [3 * _MIB] * 2
    assert len(forwards.read(stream.session, topic.id, 200, 1)) == 1


def test_retries_are_read_within_the_same_limit(stream: Stream) -> None:
    app, topic = stream.app(), stream.topic()
    app.send_many("t", range(4))
    stream.rows("UPDATE ems_message SET headers = REPEAT('x', %s), size = 0 WHERE `offset` IN (1, 2, 3)", 3 * _MIB)
    group, me = stream.group(topic), stream.client()
    for offset in (1, 2, 3, 4):
        rows.add_retry(stream.rows, group.id, offset)
    taken = [claims.take_retries(stream.session, stream.claimant(topic, group, me)) for _ in range(4)]
    assert [offsets(claim) if claim else [] for claim in taken] == [[1], [2], [3, 4], []]
    assert [(claim.lo, claim.hi) for claim in taken if claim] == [(1, 1), (2, 2), (3, 4)]


def test_halves_of_surrogate_pairs_in_texts_stop_nobody(stream: Stream) -> None:
    """MariaDB stores them; MySQL refuses them."""
    stream.topic()
    written = 0
    for row in (b"('t', '\"\xed\xa0\x80\"', NULL)", b"('\xed\xa0\x80', '1', NULL)", b"('t', '1', '\xed\xb0\x80')"):
        try:
            stream.sql.query(b"INSERT INTO ems_publish (topic, body, `key`) VALUES " + row)  # type: ignore[arg-type]
            written += 1
        except Exception as error:
            assert "Incorrect string value" in str(error)
    stream.rows("INSERT INTO ems_publish (topic, body) VALUES ('t', '\"last\"')")
    _relay(stream)
    assert _bodies(stream)[-1] == b"last"
    assert stream.value("SELECT COUNT(*) FROM ems_publish WHERE refused_at IS NULL") == 0
    assert (
        len(Admin(stream.app()).refused.list()) == stream.value("SELECT COUNT(*) FROM ems_publish") >= min(written, 2)
    )


_PLACE = "topic_id, `partition`, `offset`, uid, kind, headers, body, born_at"
_UNSOUND = {
    "no id": "0, 5, NULL, 'message'",
    "no kind": "0, 5, REPEAT('x', 16), ''",
    "an unknown kind": "0, 5, REPEAT('x', 16), 'nothing'",
    "the last offset": "0, 18446744073709551615, REPEAT('x', 16), 'message'",
    "an offset of 63 bits": "0, 9223372036854775807, REPEAT('x', 16), 'message'",
}


@pytest.mark.parametrize("values", _UNSOUND.values(), ids=_UNSOUND)
def test_a_message_that_nobody_could_read_is_refused_at_once(stream: Stream, values: str) -> None:
    """A session without strict mode takes any text for a kind, as an empty one."""
    app, topic = stream.app(), stream.topic()
    app.send("t", 1)
    stream.rows("SET SESSION sql_mode = ''")
    with pytest.raises(pymysql.MySQLError, match="ems_message_sound"):
        stream.rows(f"INSERT INTO ems_message ({_PLACE}) VALUES ({topic.id}, {values}, '', '1', NOW(6))")
    with pytest.raises(pymysql.MySQLError, match="ems_partition_sound"):
        stream.rows("UPDATE ems_partition SET next_offset = 18446744073709551615")
    assert app.send("t", 2).offset == 2


def test_a_priority_of_any_length_is_shown(stream: Stream) -> None:
    """Python reads no number of more than 4300 digits."""
    stream.app().send("t", 1)
    block = json.dumps({"ems-priority": "9" * 5000})
    stream.rows("UPDATE ems_message SET headers = %s WHERE `offset` = 1", block)
    for command in (["messages", "list", "t"], ["messages", "get", "t/0/1"], ["messages", "list", "t", "--json"]):
        done = CliRunner().invoke(cli, command, env={"EMS_URL": stream.url})
        assert done.exit_code == 0 and "99999" in done.output, (command, done.output[-500:], done.stderr[-500:])


_UNSEEN = {
    "override": "\u202e",
    "no width": "\u200b",
    "mark": "\u061c",
    "isolate": "\u2066",
    "feff": "\ufeff",
    "tag": "\U000e0041",
}


@pytest.mark.parametrize("sign", _UNSEEN.values(), ids=_UNSEEN)
def test_what_turns_or_hides_text_is_shown_as_an_escape(stream: Stream, sign: str) -> None:
    """With it one name looks like another, in a list or in the question whether something is to be deleted."""
    app, name = stream.app(), f"safe{sign}gpj.exe"
    app.send("t", {"name": name}, key=name, tag=name, headers={"name": name})
    stream.rows("INSERT INTO ems_publish (topic, body) VALUES (%s, '1')", name)
    _relay(stream)
    stream.group(stream.topic("u"))
    commands = [
        "messages list t",
        "messages list t --json",
        "messages get t/0/1",
        "messages get t/0/1 --json",
        "trace t/0/1",
    ]
    for command in [*commands, "refused list", "refused list --json"]:
        done = CliRunner().invoke(cli, command.split(), env={"EMS_URL": stream.url})
        assert done.exit_code == 0 and "safe" in done.output and sign not in done.output, command
        if "--json" in command:
            assert name in json.dumps(json.loads(done.output), ensure_ascii=False), "a program gets what was sent"
    with TestClient(ems_web(stream.url, access=lambda request: Visitor("ann", "reader")), "http://localhost") as client:
        for path in ("/messages?topic=t", "/trace?id=t/0/1", "/refused"):
            text = client.get(path).text
            assert sign not in text and ("safe" in text or path == "/refused"), path
    record = logging.LogRecord("emsworker.x", logging.ERROR, "", 1, "task %s", (name,), None)
    assert sign not in TextFormatter().format(record) and sign not in JsonFormatter().format(record)
