"""Sessions, transactions and migrations."""

import os
import re
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from urllib.parse import quote, urlsplit

import pymysql
import pytest
from pymysql.cursors import SSCursor

from emsworker.core.errors import AccessDenied, ConfigError, Conflict, ConnectionLost, SchemaMissing
from emsworker.core.url import DatabaseUrl
from emsworker.local import LocalDatabase as Server
from emsworker.store import topics
from emsworker.store.engine import schema, tables
from emsworker.store.engine.database import Database
from emsworker.store.engine.nodes import nodes_of
from emsworker.store.engine.schema import check_version, grants, migrate, put_back, server_facts, stream_id, versions
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Sql
from emsworker.store.engine.tables import TableFaults, find_faults
from emsworker.store.groups import progress
from tests.support.servers import _execute, connect, set_globals
from tests.support.streams import Stream, flush_of, in_threads, offsets, wait_until


def test_migrating_is_repeatable(database: str) -> None:
    with Database(database).session() as session:
        with pytest.raises(SchemaMissing, match="run `ems migrate`"):
            check_version(session)
        assert migrate(session) == versions()
        identity = stream_id(session)
        assert migrate(session) == []
        check_version(session)
        assert stream_id(session) == identity


def test_migrating_twice_at_once_does_it_once(database: str) -> None:
    def one(number: int) -> list[int]:
        with Database(database).session() as session:
            return migrate(session)

    applied = in_threads(4, one)
    assert sorted(map(len, applied)) == [0, 0, 0, len(versions())]


def test_a_migration_that_was_interrupted_goes_on(stream: Stream) -> None:
    stream.rows("DROP TABLE ems_leader")
    stream.rows("DELETE FROM ems_schema_version")
    assert migrate(stream.session) == versions()
    assert stream.rows("SELECT * FROM ems_leader") == []


def test_a_table_that_was_dropped_is_put_back_unless_it_is_the_stream_itself(stream: Stream) -> None:
    stream.rows("DROP TABLE ems_alarm, ems_retry")
    assert migrate(stream.session) == []
    assert put_back(stream.session) == ["ems_retry", "ems_alarm"]
    assert put_back(stream.session) == [] and stream.rows("SELECT * FROM ems_retry") == []
    stream.rows("DROP TABLE ems_alarm, ems_cursor")
    with pytest.raises(SchemaMissing, match=r"the stream itself, ems_cursor is missing; restore"):
        put_back(stream.session)
    assert set(find_faults(stream.session, versions()[-1]).missing) == {"ems_alarm", "ems_cursor"}, "nothing half done"


@pytest.mark.parametrize("table", ["ems_topic", "ems_schema_version", "ems_audit"])
def test_a_foreign_table_with_the_name_of_ours_is_refused_before_anything_is_made(database: str, table: str) -> None:
    with Database(database).session() as session, connect(database, autocommit=True) as sql, sql.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, version INT, title TEXT)")
        with pytest.raises(SchemaMissing, match=rf"table {table} has no columns? .*rename or drop it"):
            migrate(session)
        cursor.execute("SHOW TABLES")
        assert cursor.fetchall() == ((table,),)
        cursor.execute(f"DROP TABLE {table}")
        assert migrate(session) == versions()


def test_a_user_who_may_not_see_a_table_is_not_told_that_it_is_missing(stream: Stream, server: Server) -> None:
    name = re.sub(r".*/", "", stream.url)
    _execute(server.admin_url, "CREATE USER IF NOT EXISTS few@'%' IDENTIFIED BY 'few'")
    _execute(server.admin_url, f"GRANT SELECT (name) ON `{name}`.ems_topic TO few@'%'")
    try:
        with Database(re.sub(r"//[^@]*@", "//few:few@", stream.url)).session() as session:
            assert find_faults(session, versions()[-1]) == TableFaults((), {})
    finally:
        _execute(server.admin_url, "DROP USER few@'%'")


def test_a_newer_schema_is_refused(stream: Stream) -> None:
    stream.rows("INSERT INTO ems_schema_version VALUES (999, X'00', 999, NOW(6))")
    for refuse in (check_version, migrate):
        with pytest.raises(SchemaMissing, match=r"version 999.*install a newer emsworker"):
            refuse(stream.session)


def test_a_missing_table_names_the_fix(database: str) -> None:
    with Database(database).session() as session, pytest.raises(SchemaMissing, match="run `ems migrate`"):
        topics.list_topics(session)


def test_a_database_with_the_longest_name_can_be_migrated(server: Server) -> None:
    name = "e" * 64
    _execute(server.admin_url, f"CREATE DATABASE `{name}`")
    try:
        with Database(re.sub(r"/[^/]*$", f"/{name}", server.admin_url)).session() as session:
            assert migrate(session)
    finally:
        _execute(server.admin_url, f"DROP DATABASE `{name}`")


def test_and_16_every_session_is_read_committed_in_utc_and_strict(stream: Stream) -> None:
    name = "tx_isolation" if server_facts(stream.session).is_mariadb else "transaction_isolation"
    row = stream.session.rows(f"SELECT @@{name}, @@time_zone, @@sql_mode, @@innodb_lock_wait_timeout, @@autocommit")[0]
    assert row[0] == "READ-COMMITTED"
    assert row[1] == "+00:00"
    assert "STRICT_TRANS_TABLES" in row[2]
    assert row[3:] == (5, 1)
    stream.session.drop()
    assert stream.session.rows("SELECT @@time_zone") == (("+00:00",),)


def test_every_session_returns_all_rows(server: Server, stream: Stream) -> None:
    set_globals(server, "SET GLOBAL sql_select_limit = 2")
    try:
        stream.session.drop()
        assert len(stream.session.rows("SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3")) == 3
    finally:
        set_globals(server, "SET GLOBAL sql_select_limit = 18446744073709551615")


def test_an_empty_locking_poll_blocks_no_insert(stream: Stream) -> None:
    topic = stream.topic()
    stream.group(topic)
    stream.session.begin()
    where = f"topic_id = {topic.id} AND `partition` = 0 AND `offset` >= 1"
    assert stream.session.rows(f"SELECT `offset` FROM ems_message WHERE {where} FOR UPDATE") == ()
    with stream.other() as other, other.cursor() as cursor:
        cursor.execute("SET innodb_lock_wait_timeout = 1")
        cursor.execute(
            "INSERT INTO ems_message (topic_id, `partition`, `offset`, uid, headers, body, born_at) "
            f"VALUES ({topic.id}, 0, 1, UNHEX(REPEAT('01', 16)), '', '', NOW(6))"
        )
    stream.session.rollback()


def test_matched_rows_are_counted_not_changed_ones(stream: Stream) -> None:
    topic = stream.topic()
    result = stream.session.execute(f"UPDATE ems_topic SET name = name WHERE id = {topic.id}")
    assert result.affected == 1


def test_fractions_of_seconds_are_kept(stream: Stream) -> None:
    stream.session.execute(
        "INSERT INTO ems_leader VALUES ('d', 'h', '2026-11-20 10:00:00.123456' + INTERVAL %(s)s SECOND)", {"s": 0.25}
    )
    assert stream.session.rows("SELECT expires_at FROM ems_leader") == (("2026-11-20 10:00:00.373456",),)


def test_values_are_escaped(stream: Stream) -> None:
    nasty = "x'; DROP TABLE ems_leader; -- \\ \" %s \0"
    assert stream.session.rows("SELECT %(a)s, %(b)s", {"a": nasty, "b": b"\0'\\\xff"}) == ((nasty, b"\0'\\\xff"),)
    assert stream.session.rows("SELECT 1 FROM DUAL WHERE 'b' IN %(names)s", {"names": ["a'", "b"]}) == ((1,),)
    assert stream.session.rows("SELECT 1 FROM DUAL WHERE X'FF' IN %(names)s", {"names": [b"\xff"]}) == ((1,),)
    assert stream.session.rows("SELECT %(n)s", {"n": 1.5})[0][0] in (1.5, Decimal("1.5"))


def _two_rows(stream: Stream) -> tuple[int, int]:
    return stream.topic("a").id, stream.topic("b").id


def test_a_lock_wait_timeout_rolls_everything_back_and_runs_again(stream: Stream) -> None:
    first, second = _two_rows(stream)
    stream.session.send("SET innodb_lock_wait_timeout = 1")
    runs: list[int] = []
    with stream.other() as other, other.cursor() as cursor:
        cursor.execute(f"UPDATE ems_topic SET max_message_bytes = 7 WHERE id = {second}")

        def work(session: Session) -> None:
            runs.append(1)
            session.execute(f"UPDATE ems_topic SET max_message_bytes = max_message_bytes + 1 WHERE id = {first}")
            if len(runs) == 2:  # the first run waited in vain, and its first statement must be undone by now
                other.rollback()
            session.execute(f"UPDATE ems_topic SET max_message_bytes = max_message_bytes + 1 WHERE id = {second}")

        stream.session.transaction(work)
    assert len(runs) == 2
    size = 4 << 20
    found = stream.rows("SELECT max_message_bytes FROM ems_topic ORDER BY id")
    assert found == [(size + 1,), (size + 1,)]


def test_a_change_within_a_transaction_is_run_again_with_all_of_it(stream: Stream) -> None:
    stream.rows("INSERT INTO ems_leader VALUES ('a', 'h', NOW(6)), ('b', 'h', NOW(6))")
    first, second = (Sql(f"UPDATE ems_leader SET holder = 'x' WHERE service = '{name}'") for name in "ab")
    tries: list[bool] = []
    results: list[object] = []

    def work(session: Session) -> str:
        tries.append(True)
        if len(tries) == 2:
            other.rollback()
        changed = session.change(first), session.change(second)
        assert session.in_transaction and changed == (1, 1)
        return "both"

    with stream.new_session() as other, stream.new_session() as session:
        session.execute(Sql("SET innodb_lock_wait_timeout = 1"))
        session.before_commit = results.append
        other.begin()
        other.execute(second)
        assert session.transaction(work) == "both"
        session.before_commit = None
    assert len(tries) == 2 and results == ["both"], "the second try holds both rows, and one commit has both"
    assert stream.rows("SELECT holder FROM ems_leader WHERE service IN ('a', 'b')") == [("x",), ("x",)]


def test_a_deadlock_is_run_again_and_both_take_effect_once(stream: Stream) -> None:
    ids = _two_rows(stream)
    meet = threading.Barrier(2)
    runs = [0, 0]

    def one(number: int) -> None:
        def work(session: Session) -> None:
            runs[number] += 1
            order = ids if number == 0 else ids[::-1]
            session.execute(f"UPDATE ems_topic SET max_message_bytes = max_message_bytes + 1 WHERE id = {order[0]}")
            if runs[number] == 1:
                meet.wait(10)
            session.execute(f"UPDATE ems_topic SET max_message_bytes = max_message_bytes + 1 WHERE id = {order[1]}")

        with stream.new_session() as session:
            session.transaction(work)

    in_threads(2, one)
    assert sorted(runs) == [1, 2]
    assert stream.rows("SELECT max_message_bytes FROM ems_topic") == [((4 << 20) + 2,)] * 2


def test_a_packet_that_fails_in_its_middle_keeps_nothing(stream: Stream) -> None:
    packet = stream.session.packet()
    packet.begin()
    packet.add("INSERT INTO ems_leader VALUES ('a', 'h', NOW(6))")
    packet.add("INSERT INTO ems_leader VALUES (NULL, 'h', NOW(6))")
    packet.commit()
    with pytest.raises(Exception, match="null"):
        packet.send()
    assert not stream.session.in_transaction
    assert stream.rows("SELECT * FROM ems_leader") == []


def test_a_packet_that_is_sent_in_parts_ends_on_the_connection_on_which_it_began(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its COMMIT, too: what follows that depends on variables that the transaction has set."""
    session = stream.session
    connection = session._open()
    connection.one_by_one = connection.may_change = True
    looks: list[bool] = []
    monkeypatch.setattr(session._nodes, "still_serves", lambda _: not looks.append(True) and len(looks) == 1)
    packet = session.packet()
    packet.begin()
    packet.add(Sql("SET @ems_lo = 7"))
    packet.commit()
    packet.add(Sql("SELECT @ems_lo"))
    assert packet.send()[-1].rows == ((7,),)
    assert len(looks) == 1, "it looked before the first statement"
    session.send(Sql("DO 1"))
    assert len(looks) == 2 and session._connection is not connection


def test_a_transaction_opens_with_its_first_statement(stream: Stream) -> None:
    stream.session.rows("SELECT 1")
    before = stream.status("Com_begin")["Com_begin"]
    stream.session.begin()
    assert stream.session.in_transaction and stream.status("Com_begin")["Com_begin"] == before
    assert stream.session.execute("INSERT INTO ems_leader VALUES ('a', 'h', NOW(6))").affected == 1
    assert stream.status("Com_begin")["Com_begin"] == before + 1
    assert stream.rows("SELECT * FROM ems_leader") == []
    stream.session.commit()
    assert len(stream.rows("SELECT * FROM ems_leader")) == 1 and not stream.session.in_transaction


@pytest.mark.parametrize("end", [Session.commit, Session.rollback, Session._rollback_quietly, Session.drop])
def test_a_transaction_without_a_statement_leaves_nothing_open(stream: Stream, end: Callable[[Session], None]) -> None:
    stream.session.begin()
    end(stream.session)
    assert not stream.session.in_transaction
    stream.session.execute("INSERT INTO ems_leader VALUES ('a', 'h', NOW(6))")
    assert len(stream.rows("SELECT * FROM ems_leader")) == 1


def commit_lent(session: Session) -> None:
    packet = session.packet()
    packet.take_back()
    packet.commit_lent()
    packet.send()


@pytest.mark.parametrize("first", ["", " ; ", "SELECT nothing"])
def test_a_first_statement_that_is_wrong_says_so_and_the_transaction_is_open(stream: Stream, first: str) -> None:
    with stream.session.lend() as connection, connection.cursor() as cursor:
        with pytest.raises(pymysql.err.MySQLError, match=r"1065|1054"):
            cursor.execute(first)
        cursor.execute("INSERT INTO ems_leader VALUES ('a', 'h', NOW(6))")
    assert stream.session.in_transaction and stream.rows("SELECT * FROM ems_leader") == []
    stream.session.rollback()
    assert stream.rows("SELECT * FROM ems_leader") == []


def test_a_first_statement_may_stream_its_rows(stream: Stream) -> None:
    with stream.session.lend() as connection, connection.cursor(SSCursor) as cursor:
        cursor.execute("SELECT 1 UNION ALL SELECT %s", (2,))
        assert list(cursor) == [(1,), (2,)]
        cursor.execute("INSERT INTO ems_leader VALUES ('a', 'h', NOW(6))")
        assert cursor.rowcount == 1
    commit_lent(stream.session)
    assert len(stream.rows("SELECT * FROM ems_leader")) == 1


@pytest.mark.parametrize("opened", [False, True])
def test_many_rows_at_once_in_a_transaction_that_is_lent(stream: Stream, opened: bool) -> None:
    """PyMySQL sends them as a bytearray, first or later."""
    with stream.session.lend() as connection, connection.cursor() as cursor:
        if opened:
            cursor.execute("SELECT 1")
        rows = [("a", "h", "2026-01-01"), ("b", "h", "2026-01-01")]  # of parameters alone: others it sends one by one
        cursor.executemany("INSERT INTO ems_leader VALUES (%s, %s, %s)", rows)
        assert cursor.rowcount == 2
    commit_lent(stream.session)
    assert len(stream.rows("SELECT * FROM ems_leader")) == 2


def test_conflicts_end_at_the_deadline(stream: Stream) -> None:
    tries: list[int] = []

    def attempt() -> None:
        tries.append(1)
        raise Conflict("again")

    with pytest.raises(Conflict):
        stream.session.retry_on_conflict(attempt, until=0.0)
    assert len(tries) == 1


def test_who_comes_back_by_itself_does_not_wait_out_a_conflict(stream: Stream) -> None:
    stream.rows("INSERT INTO ems_leader VALUES ('a', 'h', NOW(6))")
    tries: list[int] = []

    def work(session: Session) -> None:
        tries.append(1)
        session.execute("UPDATE ems_leader SET holder = 'x' WHERE service = 'a'")

    with stream.new_session() as other, Database(stream.url).session(patient=False) as impatient:
        other.begin()
        other.execute("UPDATE ems_leader SET holder = 'other' WHERE service = 'a'")
        impatient.execute("SET innodb_lock_wait_timeout = 1")
        with pytest.raises(Conflict):
            impatient.transaction(work)
        assert len(tries) == 1 and not impatient.in_transaction
        other.rollback()


def test_a_forked_child_uses_a_connection_of_its_own(stream: Stream) -> None:
    mine = stream.session.rows("SELECT CONNECTION_ID()")[0][0]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # nothing of pytest may run here
        status = 1
        try:
            its = stream.session.rows("SELECT CONNECTION_ID()")[0][0]
            stream.session.close()
            os.write(writer, str(its).encode())
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    its = int(os.read(reader, 100))
    os.close(reader)
    os.close(writer)
    assert its != mine
    assert stream.session.rows("SELECT CONNECTION_ID()") == ((mine,),)


def test_a_child_that_only_closes_does_not_say_goodbye_for_its_parent(stream: Stream) -> None:
    mine = stream.session.rows("SELECT CONNECTION_ID()")[0][0]
    child = os.fork()
    if child == 0:
        stream.session.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert stream.session.rows("SELECT CONNECTION_ID()") == ((mine,),)


def test_a_killed_connection_is_told_and_replaced(stream: Stream) -> None:
    mine = stream.session.rows("SELECT CONNECTION_ID()")[0][0]
    stream.rows(f"KILL {mine}")
    with pytest.raises(ConnectionLost):
        stream.session.rows("SELECT 1")
    assert not stream.session.connected
    assert stream.session.rows("SELECT CONNECTION_ID()")[0][0] != mine


def test_a_slow_answer_is_waited_for_unless_the_server_is_given_up(stream: Stream) -> None:
    """Also one whose rows come slowly: what has come before a timeout is not lost."""
    connection = nodes_of(DatabaseUrl.parse(stream.url)).open()
    asked: list[int] = []
    connection.watch(60, 0.05, lambda: bool(asked.append(1)))
    connection.query(
        "SELECT n, SLEEP(0.2), REPEAT('x', 30000) FROM (SELECT 1 n UNION ALL SELECT 2 UNION ALL SELECT 3) few"
    )
    assert [(row[0], len(row[2])) for row in connection._result.rows] == [(n, 30000) for n in (1, 2, 3)]
    assert len(asked) >= 3
    connection.watch(60, 0.05, lambda: True)
    with pytest.raises(pymysql.OperationalError, match="given up for the other servers"):
        connection.query("SELECT SLEEP(5)")
    connection = nodes_of(DatabaseUrl.parse(stream.url)).open()
    connection.watch(0.2, 0.05, lambda: False)
    with pytest.raises(pymysql.OperationalError, match="timed out"):
        connection.query("SELECT SLEEP(5)")


def test_a_call_outlives_a_killed_connection(stream: Stream) -> None:
    database = Database(stream.url)
    mine = database.call(lambda session: session.rows("SELECT CONNECTION_ID()"))[0][0]
    stream.rows(f"KILL {mine}")
    assert database.call(lambda session: session.rows("SELECT 1")) == ((1,),)


def test_an_exception_from_outside_leaves_no_half_packet(stream: Stream) -> None:
    with pytest.raises(KeyboardInterrupt), stream.session._mapped_errors():
        stream.session.begin()
        raise KeyboardInterrupt
    assert not stream.session.connected
    assert stream.session.rows("SELECT 1") == ((1,),)


def test_what_is_wrong_with_the_surroundings_is_named(stream: Stream) -> None:
    wrong_password = re.sub(r"//([^:]+):[^@]*@", r"//\1:secret-and-wrong@", stream.url)
    with Database(wrong_password).session() as session, pytest.raises(AccessDenied, match="EMS_URL") as caught:
        session.rows("SELECT 1")
    assert "secret" not in str(caught.value) and "ems check" not in str(caught.value), "that would say the same"
    missing = re.sub(r"/[^/]*$", "/ems_there_is_none", stream.url)
    with Database(missing).session() as session, pytest.raises((ConfigError, AccessDenied), match="ems_there_is_none"):
        session.rows("SELECT 1")


@pytest.mark.parametrize("password", ["pé", "💥 ü", "a b@c/d:e#f?g%h&i=j'k\"l+\\"])
def test_a_password_may_have_any_characters(server: Server, stream: Stream, password: str) -> None:
    account = f"'odd'@'{urlsplit(stream.url).hostname}'"
    quoted = pymysql.converters.escape_string(password)
    _execute(server.admin_url, f"CREATE USER {account} IDENTIFIED BY '{quoted}'")
    try:
        parts = urlsplit(stream.url)
        url = f"mysql://odd:{quote(password, safe='')}@{parts.hostname}:{parts.port}/information_schema"
        with Database(url).session() as session:
            assert session.rows(Sql("SELECT 1")) == ((1,),)
    finally:
        _execute(server.admin_url, f"DROP USER {account}")


def test_the_server_is_recognised(server: Server, stream: Stream) -> None:
    facts = server_facts(stream.session)
    assert facts.is_mariadb == (server.flavor == "mariadb")
    assert facts.supported
    assert facts.max_allowed_packet >= 1 << 20
    assert facts.flush_log_at_commit == 1
    assert facts.binlog_format == "ROW" or facts.is_mariadb
    assert any("GRANT" in line for line in grants(stream.session))


def test_and_18_the_tables_hold_large_bodies_and_compare_names_by_byte(stream: Stream) -> None:
    types = dict(
        stream.rows(
            "SELECT CONCAT(TABLE_NAME, '.', COLUMN_NAME), DATA_TYPE FROM information_schema.COLUMNS "
            "WHERE TABLE_SCHEMA = DATABASE() AND COLUMN_NAME = 'body'"
        )
    )
    assert types.pop("ems_alarm_event.body") == "text", "of our own making, a few hundred characters"
    assert types.pop("ems_publish.body") == "longtext", "JSON as other programs write it"
    assert set(types.values()) == {"longblob"}
    assert set(types) >= {f"{table}.body" for table in ("ems_message", "ems_dead", "ems_outbox")}
    names = ["Orders", "orders", "ORDERS"]
    assert len({stream.topic(name).id for name in names}) == 3
    topic = stream.topic("orders")
    assert len({stream.group(topic, name).id for name in names}) == 3
    assert topics.get_topic(stream.session, "oRDERS") is None


def test_no_table_needs_what_only_one_server_has(stream: Stream) -> None:
    rows = stream.rows("SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE()")
    assert {engine for _, engine in rows} == {"InnoDB"}
    for table in ("TRIGGERS", "ROUTINES"):
        column = "TRIGGER_SCHEMA" if table == "TRIGGERS" else "ROUTINE_SCHEMA"
        assert stream.value(f"SELECT COUNT(*) FROM information_schema.{table} WHERE {column} = DATABASE()") == 0


def test_another_migration_is_waited_for(database: str) -> None:
    with connect(database, autocommit=True) as other, other.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK(CONCAT('ems_migrate:', LEFT(SHA2(DATABASE(), 256), 40)), 1)")
        applied: list[list[int]] = []

        def run() -> None:
            with Database(database).session() as session:
                applied.append(migrate(session))

        thread = threading.Thread(target=run)
        thread.start()
        wait_until(lambda: _waits_for_a_lock(database), what="the wait for the other migration")
        assert applied == []
        cursor.execute("SELECT RELEASE_LOCK(CONCAT('ems_migrate:', LEFT(SHA2(DATABASE(), 256), 40)))")
        thread.join(20)
    assert applied == [versions()]


def _waits_for_a_lock(url: str) -> bool:
    waiting = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE LIKE %s AND INFO LIKE %s"
    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(waiting, ("%lock%", "SELECT GET_LOCK%"))
        row = cursor.fetchone()
        return row is not None and row[0] > 0


def test_tables_of_the_version_before_are_upgraded_under_running_processes(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at a release whose migration says nothing of older programs: what runs goes on, what starts is refused."""
    app, topic = stream.app(), stream.topic()
    app.send_many("t", [1, 2, 3])
    group, me = stream.group(topic), stream.client()
    claim = stream.take(topic, group, me, batch=2)
    identity = stream_id(stream.session)
    added = tmp_path / "0999_note.sql"
    added.write_text("ALTER TABLE ems_message ADD COLUMN note VARBINARY(9) NULL, %(instantly)s;\n")
    old = schema.migrations
    with monkeypatch.context() as newer:
        for module in (schema, tables):
            newer.setattr(
                module,
                "migrations",
                lambda package=tables.CORE: old(package) | ({999: added} if package == tables.CORE else {}),
            )
        with pytest.raises(SchemaMissing, match="run `ems migrate`"):
            check_version(stream.session)
        assert migrate(stream.session) == [999]
        assert migrate(stream.session) == []
        check_version(stream.session)
        assert stream_id(stream.session) == identity
    progress.flush(stream.session, flush_of(claim, topic, 2))
    assert app.send("t", 4).offset == 4
    assert offsets(stream.take(topic, group, me)) == [3, 4]
    with pytest.raises(SchemaMissing, match=r"version 999.*install a newer emsworker"):
        stream.app().send("t", 5)


def test_a_server_beside_an_address_that_nobody_answers_is_written_to(stream: Stream) -> None:
    """Of several addresses only one that is not read-only is used, and no other variable of the server says so."""
    port = urlsplit(stream.url).port
    url = stream.url.replace(f":{port}/", f":1,127.0.0.1:{port}/")
    with Database(url).session() as session:
        assert session.rows(Sql("SELECT 1")) == ((1,),)
