"""Publishing by plain SQL: a client that is not Python, a trigger and a procedure; a bad row stops no other one."""

import json
import shutil
import subprocess
from urllib.parse import unquote, urlsplit

import pytest

from emsworker.admin import Admin
from emsworker.beat.expiry import sweep_refused
from emsworker.beat.relay import Relay
from emsworker.core.codec import decode_headers
from emsworker.core.config import Settings
from emsworker.core.errors import UnknownMessage
from emsworker.local import LocalDatabase
from emsworker.store.engine.database import Database
from tests.support.roles import users
from tests.support.streams import Stream

UID = "0190d6a4-5f2b-7c3e-8d1a-2b3c4d5e6f70"
GOOD = f"""
SET NAMES latin1;
START TRANSACTION;
INSERT INTO ems_publish (topic, body) VALUES ('t', '{{"price": 1.5, "to": "J\xfcrgen"}}');
INSERT INTO ems_publish (topic, body, `key`, tag, headers, priority) VALUES ('levels', '[1]', 'k', 'new', '{{"a": "b"}}', 9);
COMMIT;
START TRANSACTION;
INSERT INTO ems_publish (topic, body) VALUES ('t', '"never"');
ROLLBACK;
INSERT INTO ems_publish (topic, body, task) VALUES ('t', '{{"order_id": 5}}', 'bill'), ('t', '[6]', 'bill');
INSERT INTO ems_publish (topic, body, uid) VALUES ('t', '"text"', '{UID}');
INSERT INTO ems_publish (topic, body, uid) VALUES ('t', '"text again"', '{UID}');
INSERT INTO ems_publish (topic, body, delay_s) VALUES ('t', 'null', 3600);
"""
BAD = {
    "there is no topic 'none'": "(topic, body) VALUES ('none', '1')",
    "body = '{' is not JSON": "(topic, body) VALUES ('t', '{')",
    "NaN is no number": "(topic, body) VALUES ('t', '[NaN]')",
    "over the limit of topic 't', 1000 bytes": "(topic, body) VALUES ('t', CONCAT('\"', REPEAT('x', 1001), '\"'))",
    "-1.0 is out of range": "(topic, body, delay_s) VALUES ('t', '1', -1)",
    "does not tell priorities apart": "(topic, body, priority) VALUES ('t', '1', 5)",
    "priority 77 is not valid": "(topic, body, priority) VALUES ('levels', '1', 77)",
    "'5' is not a message id": "(topic, body, uid) VALUES ('t', '1', '5')",
    "they must be a JSON object": "(topic, body, headers) VALUES ('t', '1', '[1]')",
    "header 'a' = 1": "(topic, body, headers) VALUES ('t', '1', '{\"a\": 1}')",
    "header 'ems-task' is reserved": "(topic, body, headers) VALUES ('t', '1', '{\"ems-task\": \"x\"}')",
    "a row with a task has its arguments": "(topic, body, task) VALUES ('t', '1', 'bill')",
    "task 'a b' is not a valid name": "(topic, body, task) VALUES ('t', '[]', 'a b')",
    "key": "(topic, body, `key`) VALUES ('t', '1', REPEAT(_utf8mb4 X'C3A9', 200))",
    "has the rule 'r'": "(topic, body) VALUES ('closed', '1')",
}


def _client(url: str, script: str) -> subprocess.CompletedProcess[bytes]:
    """The server's own command line."""
    place = urlsplit(url)
    program = shutil.which("mariadb") or shutil.which("mysql")
    if program is None:
        pytest.skip("no command line client is installed")
    command = [program, "--no-defaults", "--protocol=tcp", f"--host={place.hostname}", f"--port={place.port}"]
    command += [
        f"--user={unquote(place.username or '')}",
        f"--password={unquote(place.password or '')}",
        place.path[1:],
    ]
    return subprocess.run(command, input=script.encode("latin1"), capture_output=True, timeout=60, check=False)


def _messages(stream: Stream, topic: str) -> list[tuple[object, dict[str, str]]]:
    rows = stream.rows(
        "SELECT m.body, m.headers FROM ems_message m JOIN ems_topic t ON t.id = m.topic_id AND m.`offset` > 0 WHERE t.name = %s "
        "ORDER BY m.`partition`, m.`offset`",
        topic,
    )
    return [
        (body.decode() if "content-type" in (headers := dict(decode_headers(raw))) else json.loads(body), headers)
        for body, raw in rows
    ]


def test_rows_of_any_client_are_sent_or_kept_with_their_error(stream: Stream, server: LocalDatabase) -> None:
    admin = Admin(stream.app())
    stream.topic("t", max_message_bytes=1000)
    stream.topic("levels", priorities=2)
    stream.topic("closed")
    admin.change_topic("closed", rule="r")
    stream.rows("CREATE TABLE purchase (n INT PRIMARY KEY)")
    stream.rows(
        "CREATE TRIGGER sent AFTER INSERT ON purchase FOR EACH ROW "
        "INSERT INTO ems_publish (topic, body) VALUES ('t', JSON_OBJECT('bought', NEW.n))"
    )
    stream.rows("CREATE PROCEDURE buy(IN number INT) INSERT INTO purchase (n) VALUES (number)")
    with users(server, stream.url) as make:
        publisher, intake = make("publisher"), Relay()
        done = _client(publisher, GOOD + "".join(f"INSERT INTO ems_publish {row};\n" for row in BAD.values()))
        assert done.returncode == 0, done.stderr
        for denied in ("SELECT 1 FROM ems_publish", "DELETE FROM ems_publish", "SELECT name FROM ems_topic",
                       "INSERT INTO ems_publish (topic, body, error) VALUES ('t', '1', 'x')"):  # fmt: skip
            assert b"denied" in _client(publisher, denied).stderr
        assert stream.rows("CALL buy(7)") == []
        with stream.other() as other, other.cursor() as cursor, Database(make("beat")).session() as session:
            cursor.execute("INSERT INTO ems_publish (topic, body) VALUES ('t', '\"late\"')")
            while intake(session, Settings()) == 0.0:
                pass
            assert stream.value("SELECT COUNT(*) FROM ems_publish WHERE refused_at IS NULL") == 0
            other.commit()
            assert intake(session, Settings()) == 0.0
            plain, tasks = {"price": 1.5, "to": "Jürgen"}, {"ems-task": "bill"}
            text = {"content-type": "text/plain"}
            assert _messages(stream, "t") == [
                (plain, {}), ([[], {"order_id": 5}], tasks), ([[6], {}], tasks), ("text", text), ({"bought": 7}, {}), ("late", text),
            ]  # fmt: skip
            assert _messages(stream, "levels") == [([1], {"a": "b", "ems-priority": "9"})]
            assert stream.rows("SELECT `key`, tag, producer_id FROM ems_message WHERE `key` IS NOT NULL") == [
                (b"k", b"new", "sql")
            ]
            assert (
                stream.value("SELECT COUNT(*) FROM ems_outbox WHERE due_at > UTC_TIMESTAMP() + INTERVAL 59 MINUTE") == 1
            )

            refused = admin.refused.list()
            assert len(refused) == len(BAD) == admin.refused.count() == stream.value("SELECT COUNT(*) FROM ems_publish")
            for row, (text_of_it, _) in zip(refused, BAD.items(), strict=True):
                assert text_of_it in row.error, row
            stream.topic("none")
            assert admin.refused.retry() == len(BAD)
            assert intake(session, Settings()) == 0.0
            assert _messages(stream, "none") == [(1, {})]
            with pytest.raises(UnknownMessage, match="is not refused"):
                admin.refused.delete([1])
            assert admin.refused.delete() == len(BAD) - 1
            assert 0 < intake(session, Settings()) <= 1 and stream.value("SELECT COUNT(*) FROM ems_publish") == 0


def test_refused_rows_are_deleted_after_a_while(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    stream.rows(
        "INSERT INTO ems_publish (topic, body, refused_at) SELECT 'nix', REPEAT('x', 100000), NOW(6) - INTERVAL d.days DAY "
        "FROM (SELECT NULL AS days UNION ALL SELECT 0 UNION ALL SELECT 6 UNION ALL SELECT 8 UNION ALL SELECT 9) d"
    )
    left = "SELECT COUNT(*) FROM ems_publish"
    assert sweep_refused(stream.session, Settings(refused_keep_s=0)) > 0 and stream.value(left) == 5
    sweep_refused(stream.session, Settings())
    assert (
        stream.value(left) == 3
        and "deleted 2 rows of ems_publish that had been refused for more than 7d" in caplog.text
    )
    sweep_refused(stream.session, Settings(refused_keep_s=0.001))
    assert stream.value(left) == 1, "what waits is no refused row"


def test_refused_rows_are_limited_by_number_and_bytes(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    stream.rows(
        "INSERT INTO ems_publish (topic, body, refused_at) VALUES ('nix', REPEAT('x', 3000), NULL), "
        + ", ".join(f"('nix', REPEAT('x', 1000), NOW(6) - INTERVAL {10 - n} HOUR)" for n in range(10))
    )
    kept = "SELECT COUNT(*) FROM ems_publish WHERE refused_at IS NOT NULL"
    sweep_refused(stream.session, Settings())
    assert stream.value(kept) == 10
    sweep_refused(stream.session, Settings(refused_keep_rows=8))
    assert stream.value(kept) == 8 and "deleted the oldest 2 rows" in caplog.text
    sweep_refused(stream.session, Settings(refused_keep_bytes=3500))
    assert stream.value(kept) == 3
    assert stream.value("SELECT MIN(refused_at) > NOW(6) - INTERVAL 4 HOUR FROM ems_publish") == 1, "the newest"
    sweep_refused(stream.session, Settings(refused_keep_bytes=1))
    assert stream.rows("SELECT LENGTH(body) FROM ems_publish") == [(3000,)], "what waits is no refused row"


def test_very_many_refused_rows_go_in_small_transactions(stream: Stream) -> None:
    stream.rows("INSERT INTO ems_publish (topic, body, refused_at) VALUES ('nix', '1', NOW(6))")
    for _ in range(8):
        stream.rows("INSERT INTO ems_publish (topic, body, refused_at) SELECT topic, body, refused_at FROM ems_publish")
    settings = Settings(refused_keep_rows=10)
    pauses = [sweep_refused(stream.session, settings) for _ in range(3)]
    assert pauses[:2] == [0.0, 0.0] and pauses[2] > 0, "256 rows, a hundred at a time"
    assert stream.value("SELECT COUNT(*) FROM ems_publish") == 10
