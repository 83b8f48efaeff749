"""Rows of topics and partitions that do not exist: found between those that do, set aside, and nobody's honest rows."""

from typing import Any

import pytest

from emsworker import Ems
from emsworker.admin import Admin
from emsworker.admin.check import Severity, check
from emsworker.beat.strays import clear_orphans
from emsworker.core.config import Settings
from emsworker.store.stream import intake, orphans
from emsworker.store.stream.orphans import OrphanRows
from emsworker.store.topics import create_topic, delete_topic
from tests.store.test_flat_cost import fill, reads
from tests.support.streams import Stream

UID = "UNHEX(REPLACE(UUID(), '-', ''))"
MISSING = 4_000_000_000


def insert(stream: Stream, topic_id: int, partition: int = 0, offset: int = 1, kind: str = "message") -> None:
    stream.rows(
        "INSERT INTO ems_message (topic_id, `partition`, `offset`, uid, kind, tag, headers, body, born_at) "
        f"VALUES (%s, %s, %s, {UID}, %s, 'red', '', '1', NOW(6))",
        topic_id, partition, offset, kind,
    )  # fmt: skip


def delay(sql: Any, topic_id: int, body: str = "1") -> None:
    with sql.cursor() as cursor:
        cursor.execute(
            "INSERT INTO ems_outbox (topic_id, due_at, uid, headers, body, producer_id, created_at) "
            f"VALUES (%s, NOW(6) + INTERVAL 1 YEAR, {UID}, '', %s, 'p', NOW(6))",
            (topic_id, body),
        )


def beat(stream: Stream) -> None:
    settings = Settings(url=stream.url)
    while clear_orphans(stream.session, settings) == 0.0:
        pass


def refused(stream: Stream) -> list[tuple[str, str | None]]:
    return [(one.topic, one.error) for one in intake.list_refused(stream.session, 0, 10_000)]


def left(stream: Stream, table: str) -> set[int]:
    return {topic_id for (topic_id,) in stream.rows(f"SELECT DISTINCT topic_id FROM {table}")}


def test_gaps_lie_between_numbers() -> None:
    assert list(orphans.gaps([], 5)) == [(-1, 5)]
    assert list(orphans.gaps([0, 1, 4], 5)) == [(1, 4)]
    assert list(orphans.gaps([3], 5)) == [(-1, 3), (3, 5)]


def test_rows_of_no_topic_are_set_aside_wherever_they_lie(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    app = stream.app()
    for name in "abc":
        app.send(name, 1)
        app.send(name, 2, countdown=3600)
    delete_topic(stream.session, Admin(app).topic("b"), force=True)
    first, last = (Admin(app).topic(name).id for name in "ac")
    stream.rows("DELETE FROM ems_topic_guard WHERE topic_id = %s", first + 1)  # as if there had never been one
    before = stream.rows("SELECT topic_id, `partition`, `offset` FROM ems_message ORDER BY 1, 2, 3")
    for foreign in (0, first + 1, last + 1, last + 2, MISSING):
        insert(stream, foreign, partition=7)
        insert(stream, foreign, partition=8, kind="tombstone")
        delay(stream.sql, foreign, body="later")
    beat(stream)
    assert stream.rows("SELECT topic_id, `partition`, `offset` FROM ems_message ORDER BY 1, 2, 3") == before
    assert left(stream, "ems_outbox") == {first, last}
    aside = refused(stream)
    assert len(aside) == 10  # a tombstone holds nothing
    assert {topic for topic, _ in aside} == {f"(topic_id {n})" for n in (0, first + 1, last + 1, last + 2, MISSING)}
    assert all("there is no topic with topic_id" in (error or "") for _, error in aside)
    assert set(stream.rows("SELECT body, tag FROM ems_publish")) == {("1", "red"), ("later", None)}
    (line,) = [one.getMessage() for one in caplog.records if "set aside" in one.getMessage()]
    assert line.startswith("15 rows set aside, see `ems refused list`; the first, in ems_outbox: topic_id 0: there is")


def test_more_than_a_transaction_takes_are_all_set_aside(stream: Stream) -> None:
    stream.topic()
    for _ in range(3):
        delay(stream.sql, MISSING)
    stream.rows(
        "INSERT INTO ems_outbox (topic_id, due_at, uid, headers, body, producer_id, created_at) "
        f"SELECT topic_id, due_at, {UID}, '', '1', 'p', NOW(6) FROM ems_outbox a CROSS JOIN "
        "(SELECT 1 FROM information_schema.columns LIMIT 200) b"
    )
    assert orphans.clear(stream.session, OrphanRows(MISSING)).rows == 100
    beat(stream)
    assert stream.value("SELECT COUNT(*) FROM ems_outbox") == 0
    assert stream.value("SELECT COUNT(*) FROM ems_publish") == 603


def test_large_rows_are_moved_a_few_at_a_time(stream: Stream) -> None:
    stream.topic()
    for _ in range(5):
        delay(stream.sql, MISSING, body="x" * (6 << 20))
    assert orphans.clear(stream.session, OrphanRows(MISSING)).rows == 2
    beat(stream)
    assert stream.value("SELECT COUNT(*) FROM ems_publish WHERE LENGTH(body) = %s", 6 << 20) == 5


def test_rows_of_no_partition_can_be_sent_again(stream: Stream, app: Ems) -> None:
    Admin(app).create_topic("t", partitions=2, priorities=2)
    app.send("t", 1)
    topic = Admin(app).topic("t")
    numbers = topic.partition_numbers()
    fillers = stream.rows("SELECT `partition` FROM ems_message WHERE `offset` = 0 ORDER BY 1")
    for partition in (2, 500, max(numbers) + 1, 65_535):
        assert partition not in numbers
        insert(stream, topic.id, partition, offset=3)
    insert(stream, topic.id, 400, offset=0)
    beat(stream)
    assert stream.rows("SELECT `partition` FROM ems_message WHERE `offset` = 0 ORDER BY 1") == fillers
    assert {one for (one,) in stream.rows("SELECT `partition` FROM ems_message WHERE `offset` > 0")} <= set(numbers)
    aside = refused(stream)
    assert len(aside) == 5 and {topic for topic, _ in aside} == {"t"}
    assert (
        "t",
        "topic 't' has no partition 500; delete the row, or, unless it is a call, retry it to send it by its key",
    ) in aside
    assert Admin(app).refused.retry() == 5


def test_nothing_is_taken_from_a_topic_that_comes_or_goes(stream: Stream) -> None:
    """What is found may belong to a topic by the time that it is cleared; the rows of an open transaction are not seen."""
    app, other = stream.app(), stream.other()
    with other.cursor() as cursor:
        cursor.execute(
            "INSERT INTO ems_topic (name, max_message_bytes, created_at) VALUES ('new', 1000000, NOW(6))",
        )
        new = cursor.lastrowid
        cursor.execute("INSERT INTO ems_topic_guard (topic_id) VALUES (%s)", (new,))
        cursor.execute("INSERT INTO ems_partition (topic_id, `partition`) VALUES (%s, 0)", (new,))
    delay(other, new)
    beat(stream)
    assert orphans.clear(stream.session, OrphanRows(new)).rows == 0
    other.commit()
    beat(stream)
    insert(stream, new)
    assert (
        orphans.clear(stream.session, OrphanRows(new)).rows
        == orphans.clear(stream.session, OrphanRows(new, 0)).rows
        == 0
    )
    app.send("new", 1, countdown=3600)
    stream.rows("UPDATE ems_topic_guard SET deleted_at = NOW(6) WHERE topic_id = %s", new)
    stream.rows("DELETE FROM ems_topic WHERE id = %s", new)  # as a deletion, which has not come to the rows yet
    stream.rows("DELETE FROM ems_partition WHERE topic_id = %s", new)
    beat(stream)
    assert stream.value("SELECT COUNT(*) FROM ems_outbox") == 2 and refused(stream) == []
    stream.rows("UPDATE ems_topic_guard SET deleted_at = NOW(6) - INTERVAL 2 HOUR")
    beat(stream)
    assert left(stream, "ems_outbox") == left(stream, "ems_message") == set() and refused(stream) == []


def test_rows_that_others_hold_are_left_and_cleared_later(stream: Stream) -> None:
    stream.topic()
    delay(stream.sql, MISSING)
    holder = stream.other()
    with holder.cursor() as cursor:
        cursor.execute("SELECT * FROM ems_outbox FOR UPDATE")
    beat(stream)
    assert stream.value("SELECT COUNT(*) FROM ems_outbox") == 1
    holder.rollback()
    beat(stream)
    assert stream.value("SELECT COUNT(*) FROM ems_outbox") == 0


def test_delayed_messages_for_a_topic_of_another_server_stay(stream: Stream) -> None:
    topic = create_topic(stream.session, "far", server="second")
    delay(stream.sql, topic.id)
    beat(stream)
    assert left(stream, "ems_outbox") == {topic.id} and refused(stream) == []


def test_a_topic_whose_row_somebody_deleted_keeps_its_messages_and_hides_no_others(stream: Stream) -> None:
    app = stream.app()
    app.send("lost", 1)
    app.send("lost", 2, countdown=3600)
    lost = Admin(app).topic("lost").id
    stream.rows("DELETE FROM ems_topic")
    stream.rows("DELETE FROM ems_partition")
    delay(stream.sql, lost + 1)
    insert(stream, lost + 1)
    beat(stream)
    assert left(stream, "ems_outbox") == left(stream, "ems_message") == {lost}
    assert {topic for topic, _ in refused(stream)} == {f"(topic_id {lost + 1})"}
    (finding,) = [one for one in check(stream.url, None, {}) if one.name == "ems_topic"]
    assert finding.severity is Severity.ERROR and f"the row of topic_id {lost} is gone" in finding.value


def test_a_partition_whose_row_somebody_deleted_keeps_its_messages(stream: Stream) -> None:
    stream.topic()
    stream.app().send("t", 1)
    stream.rows("DELETE FROM ems_partition")
    beat(stream)
    assert stream.value("SELECT COUNT(*) FROM ems_message WHERE `offset` > 0") == 1 and refused(stream) == []


def test_the_check_shows_them(stream: Stream) -> None:
    topic = stream.topic()
    assert not [one for one in check(stream.url, None, {}) if "no such topic" in one.value]
    delay(stream.sql, MISSING)
    insert(stream, topic.id, 3)
    found = [one for one in check(stream.url, None, {}) if "no such topic" in one.value]
    assert [one.name for one in found] == [
        f"ems_outbox: topic_id {MISSING}", f"ems_message: topic_id {topic.id}, partition 3"
    ]  # fmt: skip
    assert {one.severity for one in found} == {Severity.WARNING}


def test_looking_for_them_reads_no_more_rows_where_there_are_many(stream: Stream) -> None:
    few = [stream.topic(name) for name in ("t", "u", "v")]
    small = reads(stream.session, lambda: orphans.find(stream.session))
    groups = [stream.group(few[1], name) for name in ("done", "retrying")]
    fill(stream, few[1], *groups)
    assert reads(stream.session, lambda: orphans.find(stream.session)) <= small + 10
