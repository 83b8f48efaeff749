"""Holds of readers outside the groups: retention keeps what they have not read, for a time."""

import logging
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from emsworker.admin import Admin
from emsworker.beat.expiry import sweep_holds
from emsworker.core.errors import ConfigError, HoldTaken, InvalidName, TopicDeleted, UnknownReader, UnknownTopic
from emsworker.monitoring import StreamMetrics
from emsworker.store import topics
from emsworker.store.stream import holds, retention
from emsworker.store.stream.holds import Hold
from tests.store.test_retention import finish, keep, left, trim_all
from tests.support import rows
from tests.support.streams import Stream, wait_until

ROOT = Path(__file__).resolve().parents[2]
ME, OTHER = b"m" * 16, b"o" * 16


def hold(topic_id: int, offset: int, reader: bytes = ME, limit_s: int = 3600) -> Hold:
    return Hold(topic_id, "nightly", 0, reader, offset, offset, limit_s)


def expire(stream: Stream) -> None:
    stream.rows("UPDATE ems_hold SET expires_at = NOW(6) - INTERVAL 1 SECOND")


@pytest.mark.parametrize(
    "settings", [{"retention_s": 3600}, {"keep_done_s": 0}, {"retention_s": 3600, "age_wins": True}], ids=str
)
def test_a_hold_keeps_messages_whatever_the_topic_says(stream: Stream, settings: dict[str, object]) -> None:
    topic, group = keep(stream, 10, **settings)
    finish(stream, topic, group, 8, stream.client())
    holds.take(stream.session, [hold(topic.id, 4)])
    trim_all(stream)
    assert left(stream) == list(range(4, 11))
    assert holds.renew(stream.session, [hold(topic.id, 7)]) == []
    trim_all(stream)
    assert left(stream) == list(range(7, 11))
    assert holds.renew(stream.session, [hold(topic.id, 5)]) == []
    assert [row.held_from for row in holds.list_holds(stream.session)] == [7], "it never goes back"
    assert holds.release(stream.session, topic.id, "nightly") == 1
    trim_all(stream)
    gone = 11 if settings.get("age_wins") else 9
    assert left(stream) == list(range(gone, 11))


def test_a_hold_counts_for_its_own_topic_and_partition(stream: Stream) -> None:
    topic = stream.topic("t", partitions=2, retention_s=3600)
    other = stream.topic("u", retention_s=3600)
    for name, partition in (("t", 0), ("t", 1), ("u", 0)):
        stream.app().send(name, 1, partition=partition)
    stream.rows("UPDATE ems_message SET born_at = born_at - INTERVAL 1 DAY")
    holds.take(stream.session, [hold(topic.id, 1)])
    trim_all(stream)
    assert stream.rows("SELECT topic_id, `partition` FROM ems_message WHERE `offset` > 0") == [(topic.id, 0)]
    assert other.id != topic.id


def test_a_hold_that_is_not_renewed_is_lost_and_said_to_be(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    topic, group = keep(stream, 10, retention_s=3600)
    finish(stream, topic, group, 10, stream.client())
    holds.take(stream.session, [hold(topic.id, 4)])
    sweep_holds(stream.session, stream.app().settings)
    assert not caplog.records
    expire(stream)
    trim_all(stream)
    assert left(stream) == list(range(4, 11)), "until the beat has said so"
    with caplog.at_level(logging.WARNING):
        sweep_holds(stream.session, stream.app().settings)
        sweep_holds(stream.session, stream.app().settings)
    (record,) = caplog.records
    assert "reader nightly of topic t has lost its hold of partition 0 from offset 4 on" in record.message
    assert "not renewed for 1h" in record.message
    trim_all(stream)
    assert left(stream) == []
    (row,) = holds.list_holds(stream.session)
    assert row.lost_at is not None and row.left_s == 0
    assert holds.renew(stream.session, [hold(topic.id, 4)]) == [hold(topic.id, 4)], "it has to be taken again"
    holds.take(stream.session, [hold(topic.id, 11)])
    (row,) = holds.list_holds(stream.session)
    assert row.lost_at is None and row.lag == 0 and 3590 < row.left_s <= 3600


def test_a_renewal_wins_over_the_beat_that_found_it_expired(stream: Stream) -> None:
    topic, _ = keep(stream, 3, retention_s=3600)
    holds.take(stream.session, [hold(topic.id, 1)])
    expire(stream)
    beat, waits = stream.other(), stream.lock_waits()
    with beat.cursor() as cursor, ThreadPoolExecutor(1) as pool:
        cursor.execute("START TRANSACTION")
        cursor.execute("UPDATE ems_hold SET expires_at = NOW(6) + INTERVAL 1 HOUR")  # a renewal that is not committed
        marking = pool.submit(holds.mark_lost, stream.session)
        wait_until(lambda: stream.lock_waits() > waits, what="a waiting beat")
        beat.commit()
        assert marking.result(30) == []
    assert [row.lost_at for row in holds.list_holds(stream.session)] == [None]
    beat.close()


def test_a_lost_hold_is_forgotten_after_three_months(stream: Stream) -> None:
    topic, _ = keep(stream, 3, retention_s=3600)
    holds.take(stream.session, [hold(topic.id, 1)])
    expire(stream)
    sweep_holds(stream.session, stream.app().settings)
    stream.rows("UPDATE ems_hold SET lost_at = lost_at - INTERVAL 89 DAY")
    sweep_holds(stream.session, stream.app().settings)
    assert len(holds.list_holds(stream.session)) == 1
    stream.rows("UPDATE ems_hold SET lost_at = lost_at - INTERVAL 1 DAY")
    sweep_holds(stream.session, stream.app().settings)
    assert holds.list_holds(stream.session) == []


def test_the_last_process_that_takes_a_name_has_it(stream: Stream) -> None:
    topic, _ = keep(stream, 10, retention_s=3600)
    holds.take(stream.session, [hold(topic.id, 4)])
    holds.take(stream.session, [hold(topic.id, 2, OTHER)])
    with pytest.raises(HoldTaken, match=r"reader 'nightly' runs twice.*holdName of its own"):
        holds.renew(stream.session, [hold(topic.id, 9)])
    assert holds.renew(stream.session, [hold(topic.id, 3, OTHER)]) == []
    assert [(row.held_from, row.lag) for row in holds.list_holds(stream.session)] == [(3, 8)]


def test_a_hold_and_retention_wait_for_each_other(stream: Stream) -> None:
    """A hold that is taken while retention raises the log start offset begins above it, or is seen by it."""
    topic, group = keep(stream, 10, retention_s=3600)
    finish(stream, topic, group, 10, stream.client())
    (kept,) = retention.list_kept(stream.session)
    other, waits = stream.other(), stream.lock_waits()
    with other.cursor() as cursor, ThreadPoolExecutor(1) as pool:
        cursor.execute("START TRANSACTION")
        cursor.execute("SELECT 1 FROM ems_partition FOR UPDATE")  # as retention does before it reads the holds
        taking = pool.submit(holds.take, stream.session, [hold(topic.id, 1)])
        wait_until(lambda: stream.lock_waits() > waits, what="a waiting reader")
        cursor.execute("UPDATE ems_partition SET log_start = 6")
        other.commit()
        taking.result(30)
    assert stream.value("SELECT log_start FROM ems_partition") == 6, "the reader sees it now, and says what it lost"
    other.close()
    assert retention.raise_log_start(stream.session, kept, 2000) == 6, "and from here on it holds"


def test_a_deleted_topic_has_no_holds(stream: Stream) -> None:
    topic = stream.topic("t")
    holds.take(stream.session, [hold(topic.id, 1)])
    topics.delete_topic(stream.session, topic, force=True)
    assert stream.value("SELECT COUNT(*) FROM ems_hold") == 0
    with pytest.raises(TopicDeleted, match=r"^the topic of reader 'nightly' was deleted meanwhile"):
        holds.take(stream.session, [hold(topic.id, 1)])


def test_readers_without_spark_hold_and_are_listed_with_their_lag(stream: Stream) -> None:
    topic = stream.topic("t", partitions=3, retention_s=3600)
    for partition, count in enumerate((10, 4, 0)):
        for number in range(count):
            stream.app().send("t", number, partition=partition)
    admin = Admin(stream.app())
    admin.readers.hold("t", "nightly", {0: 3, 1: 5, 2: 1}, hold_for_s=600)
    rows.age(stream.rows, 86400)
    trim_all(stream)
    assert stream.rows("SELECT `partition`, log_start FROM ems_partition") == [(0, 3), (1, 5), (2, 1)]
    (view,) = admin.readers.holds("t")
    assert (view.topic, view.name, view.lags, view.lost) == ("t", "nightly", [8, 0, 0], False)
    assert 590 < view.left_s <= 600 and 0 <= view.age_s < 60
    admin.readers.hold("t", "nightly", {0: 11, 1: 5, 2: 1})
    assert [one.lags for one in admin.readers.holds()] == [[0, 0, 0]]
    with pytest.raises(ConfigError) as caught:
        admin.readers.hold("t", "nightly", {0: 0}, hold_for_s=0)
    assert [problem.name for problem in caught.value.problems] == ["offset of partition 0", "hold_for_s"]
    with pytest.raises(InvalidName, match="reader 'a b'"):
        admin.readers.hold("t", "a b", {0: 1})
    with pytest.raises(UnknownTopic):
        admin.readers.holds("gone")
    assert admin.readers.release("t", "nightly") == 3
    with pytest.raises(UnknownReader, match="no reader 'nightly' holds messages of topic 't'"):
        admin.readers.release("t", "nightly")
    assert topic.partitions == 3


def test_a_hold_of_a_place_that_there_is_not_is_refused_all_at_once(stream: Stream) -> None:
    stream.topic("t", partitions=2)
    for number in range(3):
        stream.app().send("t", number, partition=0)
    readers = Admin(stream.app()).readers
    span: Any = "60"
    wrong: dict[Any, Any] = {7: 1, "0": 1, 0: 5, 1: "1"}
    with pytest.raises(ConfigError) as caught:
        readers.hold("t", "nightly", wrong, hold_for_s=span)
    assert [(one.name, one.value, one.fix) for one in caught.value.problems] == [
        ("partition", "7", "topic 't' has 2 partitions, numbered from 0"),
        ("partition", "'0'", "topic 't' has 2 partitions, numbered from 0"),
        ("offset of partition 0", "5", "must be a whole number from 1 to 4, where the next message comes"),
        ("offset of partition 1", "'1'", "must be a whole number from 1 to 1, where the next message comes"),
        ("hold_for_s", "'60'", "must be a number of seconds"),
    ]
    assert readers.holds() == []
    readers.hold("t", "nightly", {0: 4, 1: 1}, hold_for_s=60)
    assert [view.lags for view in readers.holds()] == [[0, 0]]


def test_the_lag_of_readers_is_a_metric(stream: Stream) -> None:
    stream.topic("t", partitions=2)
    for number in range(10):
        stream.app().send("t", number, partition=0)
    Admin(stream.app()).readers.hold("t", "nightly", {0: 3, 1: 1}, hold_for_s=600)

    def samples() -> dict[str, float]:
        found = {}
        for family in StreamMetrics(stream.app()).collect():
            for sample in family.samples:
                if sample.labels == {"topic": "t", "reader": "nightly"}:
                    found[sample.name] = sample.value
        return found

    now = samples()
    behind = {name: now[f"ems_reader_{name}_offsets_behind"] for name in ("avg", "max", "min")}
    assert behind == {"avg": 4, "max": 8, "min": 0}
    assert now["ems_reader_hold_lost"] == 0 and 590 < now["ems_reader_hold_left_seconds"] <= 600
    assert 0 <= now["ems_reader_hold_age_seconds"] < 60
    page = (ROOT / "docs/reference/events.md").read_text()
    assert set(now) == set(re.findall(r"^\| `(ems_reader_\w+)`", page, re.MULTILINE))
    expire(stream)
    sweep_holds(stream.session, stream.app().settings)
    assert (samples()["ems_reader_hold_lost"], samples()["ems_reader_hold_left_seconds"]) == (1, 0)
