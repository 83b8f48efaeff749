"""Readers in bulk: what is noted as whole is whole, whoever publishes, deletes or holds locks meanwhile."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from emsworker import Ems
from emsworker.arrow import scan
from emsworker.beat.retention import resolve
from emsworker.beat.services import LedStream, leader_services
from emsworker.core.config import Settings
from emsworker.core.model import Topic
from emsworker.core.offsets import OffsetRange
from emsworker.publish.outgoing import Outgoing
from emsworker.store.stream import high_watermark
from emsworker.store.stream.holes import find_hole
from tests.support import rows
from tests.support.streams import Stream


def insert(stream: Stream, topic: Topic, *offsets: int) -> None:
    for offset in offsets:
        stream.rows(
            "INSERT INTO ems_message (topic_id, `partition`, `offset`, uid, headers, body, born_at) "
            "VALUES (%s, 0, %s, UNHEX(REPLACE(UUID(), '-', '')), '', '1', NOW(6))",
            topic.id,
            offset,
        )


def noted(stream: Stream) -> list[int]:
    return [
        high_watermark
        for (high_watermark,) in stream.rows("SELECT high_watermark FROM ems_partition ORDER BY topic_id, `partition`")
    ]


def test_it_stops_at_a_hole_and_goes_on_when_that_is_filled(stream: Stream) -> None:
    topic = stream.topic()
    insert(stream, topic, 1, 2, 4, 5)
    assert high_watermark.advance(stream.session) is False
    assert noted(stream) == [3]
    assert high_watermark.advance(stream.session) is False
    assert noted(stream) == [3]
    insert(stream, topic, 3)
    assert high_watermark.advance(stream.session) is False
    assert noted(stream) == [6]
    assert scan.list_bounds(stream.session, topic.id) == [scan.PartitionBounds(0, log_start=1, high_watermark=6, end=6)]


def test_a_long_stream_is_counted_in_steps(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(high_watermark, "_STEP", 3)
    topic = stream.topic()
    insert(stream, topic, *range(1, 8))
    assert high_watermark.advance(stream.session) is True
    assert noted(stream) == [4]
    assert high_watermark.advance(stream.session) is True
    assert noted(stream) == [7]
    assert high_watermark.advance(stream.session) is False
    assert noted(stream) == [8]


def test_below_the_log_start_nothing_is_missed(stream: Stream) -> None:
    topic = stream.topic()
    insert(stream, topic, 5, 6, 8)
    rows.trim(stream.rows, 5, deleted=False)
    high_watermark.advance(stream.session)
    assert noted(stream) == [7]
    rows.trim(stream.rows, 8, deleted=False)
    assert scan.list_bounds(stream.session, topic.id) == [scan.PartitionBounds(0, log_start=8, high_watermark=8, end=9)]


def test_a_locked_partition_is_not_waited_for(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor counted again and again, which a beat does where there is more."""
    monkeypatch.setattr(high_watermark, "_STEP", 2)
    first, second = stream.topic("a", partitions=2), stream.topic("b")
    insert(stream, first, 1, 2, 3)
    insert(stream, second, 1)
    stream.rows("UPDATE ems_message SET `partition` = 1, `offset` = 1 WHERE topic_id = %s AND `offset` = 3", first.id)
    insert(stream, first, 3)
    holder = stream.other()
    with holder.cursor() as cursor:
        cursor.execute("SELECT 1 FROM ems_partition WHERE topic_id = %s AND `partition` = 0 FOR UPDATE", (first.id,))
        waits = stream.lock_waits()
        assert high_watermark.advance(stream.session) is False
        assert stream.lock_waits() == waits
        assert noted(stream) == [1, 2, 2]
    holder.rollback()
    holder.close()
    assert high_watermark.advance(stream.session) is True
    assert high_watermark.advance(stream.session) is False
    assert noted(stream) == [4, 2, 2]


def test_a_leader_that_is_stopped_holds_no_lock(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two packets nothing of it is locked, whenever it is stopped."""
    insert(stream, stream.topic(), 1, 2)
    send, open_after = stream.session.send, []

    def spy(sql: str) -> object:
        try:
            return send(sql)
        finally:
            open_after.append(stream.session.in_transaction)

    monkeypatch.setattr(stream.session, "send", spy)
    high_watermark.advance(stream.session)
    assert noted(stream) == [3]
    assert open_after == [False] * 3, "list, count, note"


def test_beside_producers_nothing_is_noted_that_is_not_there(stream: Stream) -> None:
    """Eight apps publish at once; meanwhile every note is compared with the rows."""
    topic = stream.topic(partitions=2)
    apps = [stream.app() for _ in range(8)]
    over = threading.Event()

    def check() -> int:
        looks = 0
        with stream.new_session() as session:
            while not over.is_set():
                high_watermark.advance(session)
                for one in scan.list_bounds(session, topic.id):
                    assert (
                        find_hole(session, OffsetRange(topic.id, one.partition, one.log_start, one.high_watermark))
                        == one.high_watermark
                    )
                looks += 1
        return looks

    def send(app: Ems) -> None:
        for _ in range(40):
            app.send_many(topic.name, [Outgoing(topic.name, number) for number in range(3)])

    with ThreadPoolExecutor(9) as pool:
        checking = pool.submit(check)
        try:
            list(pool.map(send, apps))
        finally:
            over.set()
        assert checking.result() > 1
    high_watermark.advance(stream.session)
    assert sum(noted(stream)) == 2 + 8 * 40 * 3


def test_the_leading_beat_does_it_now_and_then(stream: Stream) -> None:
    insert(stream, stream.topic(), 1, 2)
    settings = Settings()
    assert resolve in leader_services(LedStream())
    assert resolve(stream.session, settings) == 10 * settings.beat_s
    assert noted(stream) == [3]
