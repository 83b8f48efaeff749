"""Rows and counters far beyond the end of a partition: whoever wrote them, the topic goes on within seconds."""

import pytest
import redis

from emsworker.beat.strays import bring_strays_back
from emsworker.core.config import Settings
from emsworker.core.errors import EmsError
from emsworker.core.model import Topic
from emsworker.store.stream import high_watermark
from emsworker.store.stream.messages import FARTHEST, close_hole_at
from emsworker.store.stream.outbox import find_due, relay_due
from tests.support.streams import Stream
from tests.support.waiting import until

FAR = 10**12
OFFSETS = "SELECT `offset` FROM ems_message WHERE kind = 'message' ORDER BY `offset`"


def insert(stream: Stream, topic: Topic, offset: int, born_at: str = "NOW(6) - INTERVAL 1 HOUR") -> None:
    stream.rows(
        "INSERT INTO ems_message (topic_id, `partition`, `offset`, uid, headers, body, born_at) "
        f"VALUES (%s, 0, %s, UNHEX(REPLACE(UUID(), '-', '')), '', '1', {born_at})",
        topic.id,
        offset,
    )


def beat(stream: Stream) -> None:
    high_watermark.advance(stream.session)
    while bring_strays_back(stream.session, Settings(url=stream.url, gap_timeout_s=0.01)) == 0.0:
        high_watermark.advance(stream.session)


def offsets(stream: Stream) -> list[int]:
    return [offset for (offset,) in stream.rows(OFFSETS)]


def test_a_row_far_away_and_what_was_sent_behind_it_come_back(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    topic, app = stream.topic(), stream.app()
    app.send_many("t", range(3))
    insert(stream, topic, FAR)
    insert(stream, topic, 2 * FAR)
    later = stream.app()
    assert later.send("t", 3).offset == 2 * FAR + 1
    late = stream.group(topic, "late", from_start=False)
    beat(stream)
    assert offsets(stream) == [1, 2, 3, 4, 5, 6]
    assert "at offset 1000000000000 and after it" in caplog.text
    assert stream.rows("SELECT body FROM ems_message WHERE `offset` = 6") == [(b"3",)]
    assert stream.rows("SELECT next_offset FROM ems_cursor WHERE group_id = %s", late.id) == [(7,)]
    # The one that still believes in its far end, the one that never had one, and one that knows nothing.
    assert [sender.send("t", 4).offset for sender in (later, app, stream.app())] == [7, 8, 9]


def test_a_counter_that_was_set_far_ahead_is_set_back(stream: Stream) -> None:
    topic = stream.topic()
    stream.app().send_many("t", range(3))
    stream.rows("UPDATE ems_partition SET next_offset = %s WHERE topic_id = %s", FAR, topic.id)
    assert stream.app().send("t", 3).offset == FAR
    stream.rows("UPDATE ems_message SET born_at = NOW(6) - INTERVAL 1 HOUR")
    beat(stream)
    assert offsets(stream) == [1, 2, 3, 4]
    assert stream.app().send("t", 4).offset == 5


@pytest.mark.parametrize("counter", [(1 << 62) - 1, (1 << 62) - 2])
def test_a_counter_at_the_end_of_all_offsets_is_set_back_and_costs_no_message(
    stream: Stream, caplog: pytest.LogCaptureFixture, counter: int
) -> None:
    topic, app = stream.topic(), stream.app()
    app.send_many("t", range(3))
    app.send_many("t", range(3, 6), countdown=0.001)
    stream.rows("UPDATE ems_partition SET next_offset = %s WHERE topic_id = %s", counter, topic.id)
    until(lambda: all(due.seconds < 0 for due in find_due(stream.session).due), 20, "they are due")
    relay_due(stream.session, 100)
    assert stream.rows("SELECT COUNT(*) FROM ems_outbox") == [(3,)], "they wait"
    assert stream.rows("SELECT COUNT(*) FROM ems_publish") == [(0,)], "it is no fault of theirs"
    with pytest.raises(EmsError):
        stream.app().send_many("t", range(6, 9))
    beat(stream)
    assert "left no offset to write" in caplog.text
    relay_due(stream.session, 100)
    assert offsets(stream) == [1, 2, 3, 4, 5, 6]
    assert stream.app().send("t", 6).offset == 7


def test_many_rows_far_away_come_back_in_steps_and_in_their_order(stream: Stream) -> None:
    topic = stream.topic()
    stream.rows("UPDATE ems_partition SET next_offset = %s WHERE topic_id = %s", FAR, topic.id)
    stream.app().send_many("t", range(250))
    stream.rows("UPDATE ems_message SET born_at = NOW(6) - INTERVAL 1 HOUR")
    beat(stream)
    assert offsets(stream) == list(range(1, 251))
    assert [
        int(body) for (body,) in stream.rows("SELECT body FROM ems_message WHERE `offset` > 0 ORDER BY `offset`")
    ] == list(range(250))


def test_a_young_row_far_away_waits_and_no_tombstone_is_written_for_it(stream: Stream) -> None:
    topic = stream.topic()
    insert(stream, topic, FAR, "NOW(6)")
    assert bring_strays_back(stream.session, Settings(url=stream.url, gap_timeout_s=60)) > 0
    assert not close_hole_at(stream.session, topic.id, 0, 1, 0.0)
    assert offsets(stream) == [FAR]
    assert stream.value("SELECT COUNT(*) FROM ems_message WHERE `offset` > 0") == 1


@pytest.mark.parametrize("born_at", ["NOW(6) + INTERVAL 100 YEAR", "'0000-00-00'"])
def test_a_hole_is_closed_below_a_row_of_no_possible_time(stream: Stream, born_at: str) -> None:
    topic = stream.topic()
    stream.rows("SET SESSION sql_mode = ''")
    insert(stream, topic, 3, born_at)
    assert close_hole_at(stream.session, topic.id, 0, 1, 5.0)
    assert stream.value("SELECT COUNT(*) FROM ems_message WHERE `offset` > 0") == 3


@pytest.mark.parametrize("number", [FARTHEST + 10, FAR, 9 * 10**18, "garbage"])
def test_a_counter_of_redis_that_is_far_ahead_is_set_right_by_a_send(
    stream: Stream, redis_url: str, number: int | str
) -> None:
    app = stream.app(allocator="redis", redis_url=redis_url)
    app.send_many("t", range(3))
    with redis.Redis.from_url(redis_url) as client:
        (key,) = client.keys("ems:*:next:*")  # type: ignore[misc]
        client.set(key, number)
    assert app.send("t", 3).offset == 4
    assert stream.app(allocator="redis", redis_url=redis_url).send("t", 4).offset == 5
    assert offsets(stream) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("allocator", ["mysql", "redis"])
def test_a_long_stream_that_no_beat_has_looked_at_goes_on(stream: Stream, redis_url: str, allocator: str) -> None:
    topic = stream.topic()
    app = stream.app(allocator=allocator, redis_url=redis_url)
    app.send("t", 0)
    insert(stream, topic, 2 * FARTHEST)  # as if all below it were there, and the counter had not been needed
    assert stream.app(allocator=allocator, redis_url=redis_url).send("t", 1).offset == 2 * FARTHEST + 1
