"""Delayed messages: never early, moved once, whoever dies."""

import contextlib
import threading
from datetime import UTC, datetime, timedelta

import pytest
from pymysql.constants import COMMAND

from emsworker.core.errors import ConfigError, ConnectionLost, MessageTooLarge
from emsworker.core.ids import parse_uid
from emsworker.core.schedule import Declared
from emsworker.store.cluster import schedules
from emsworker.store.engine.session import Result, Session
from emsworker.store.groups import claims
from emsworker.store.stream import outbox
from tests.support.streams import Stream
from tests.support.waiting import until

LATE = "SELECT COUNT(*) FROM ems_outbox"
READ = "SELECT COUNT(*) FROM ems_message WHERE `offset` > 0"


def relay(stream: Stream, session: Session | None = None, limit: int = 100) -> int:
    session = session or stream.session
    return sum(outbox.relay(session, due, limit).count for due in outbox.find_due(session).due if due.seconds <= 0)


def test_a_delayed_message_is_never_early(stream: Stream) -> None:
    app = stream.app()
    receipt = app.send("t", {"n": 1}, key="k", tag="x", headers={"a": "b"}, countdown=0.4)
    assert (receipt.partition, receipt.offset) == (None, None)
    assert relay(stream) == 0
    (due,) = outbox.find_due(stream.session).due
    assert 0 < due.seconds <= 0.4
    planned = stream.value("SELECT due_at FROM ems_outbox")
    until(lambda: relay(stream), 5, "it is due")
    row = stream.rows("SELECT uid, `key`, tag, headers, body, born_at FROM ems_message WHERE `offset` > 0")[0]
    assert row[:5] == (parse_uid(receipt.id), b"k", b"x", b'{"a":"b"}', b'{"n":1}')
    assert planned <= row[5] < planned + timedelta(seconds=2)
    assert stream.value(LATE) == 0


def test_a_look_for_work_tells_when_the_next_message_or_schedule_is_due(stream: Stream) -> None:
    app = stream.app()
    topic, other = stream.topic("t"), stream.topic("other")
    group = stream.group(topic, "g")
    assert claims.find_work(stream.session, [group.id]).due_s is None
    app.send("other", 1, countdown=5)
    assert claims.find_work(stream.session, [group.id]).due_s is None, f"nobody reads {other.name}"
    app.send("t", 1, countdown=600)
    due_s = claims.find_work(stream.session, [group.id]).due_s
    assert due_s is not None and 300 < due_s <= 600
    schedules.declare(stream.session, [Declared("s", "*/2 * * * *", "UTC", "last", topic.name, None, b"{}", b"1")])
    due_s = claims.find_work(stream.session, [group.id]).due_s
    assert due_s is not None and 0 < due_s <= 120


def test_eta_is_a_time_in_utc_or_in_its_own_zone(stream: Stream) -> None:
    app = stream.app()
    past = datetime.now(UTC) - timedelta(minutes=1)
    app.send("t", 1, eta=past)
    app.send("t", 2, eta=past.replace(tzinfo=None))
    app.send("t", 3, eta=datetime.now(UTC) + timedelta(hours=1))
    assert relay(stream) == 2
    with pytest.raises(ConfigError, match="either countdown or eta"):
        app.send("t", 4, eta=past, countdown=1)
    with pytest.raises(MessageTooLarge):
        app.send("t", b"x" * (5 << 20), countdown=1)
    assert (stream.value(READ), stream.value(LATE)) == (2, 1)


def test_a_relay_that_stands_by_moves_only_what_is_late(stream: Stream) -> None:
    app = stream.app()
    stream.topic("t")
    app.send("t", 1, eta=datetime.now(UTC) - timedelta(minutes=1))
    app.send("t", 2, countdown=0)
    assert outbox.relay_due(stream.session, 100, 5.0).topic_ids
    assert [row[0] for row in stream.rows("SELECT body FROM ems_message WHERE `offset` > 0")] == [b"1"]
    left = outbox.relay_due(stream.session, 100, 5.0)
    assert not left.topic_ids and 4 < left.next_s <= 5
    assert outbox.relay_due(stream.session, 100).topic_ids and stream.value(LATE) == 0


def test_the_same_uid_is_read_once(stream: Stream) -> None:
    app = stream.app()
    uid = "0190d6a4-5f2b-7c3e-8d1a-2b3c4d5e6f70"
    app.send("t", 1, uid=uid, countdown=0)
    app.send("t", 1, uid=uid, countdown=0)
    assert stream.value(LATE) == 1
    app.send("t", 1, uid=uid)
    app.send("t", 2, countdown=0)
    until(lambda: relay(stream) == 0 and stream.value(LATE) == 0, 5, "all moved or dropped")
    assert stream.value(READ) == 2


def test_relays_at_once_share_the_work(stream: Stream) -> None:
    app = stream.app()
    stream.topic("t", partitions=3)
    for number in range(200):
        app.send("t", number, countdown=0)

    def work() -> None:
        with stream.new_session() as session:
            while stream_left(session):
                relay(stream, session, 20)

    def stream_left(session: Session) -> bool:
        return bool(session.rows(LATE)[0][0])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (stream.value(READ), stream.value("SELECT COUNT(DISTINCT uid) FROM ems_message WHERE `offset` > 0")) == (
        200,
        200,
    )
    for high, count in stream.rows(
        "SELECT MAX(`offset`), COUNT(*) FROM ems_message WHERE `offset` > 0 GROUP BY `partition`"
    ):
        assert high == count, "no holes"


class Dying(Session):
    """Is gone after a number of packets, the last of which the server still gets."""

    packets = 1

    def send(self, sql: str) -> list[Result]:
        self.packets -= 1
        if self.packets >= 0:
            return super().send(sql)
        connection = self._open()
        connection._execute_command(COMMAND.COM_QUERY, sql)
        connection._force_close()
        self.drop()
        raise ConnectionLost("died")


def test_a_relay_that_dies_loses_and_doubles_nothing(stream: Stream) -> None:
    app = stream.app()
    for number in range(60):
        app.send("t", number, countdown=0)
    for packets in [1, 2, 3] * 8:
        dying = Dying(stream.session._url, stream.session._nodes)
        dying.packets = packets
        with contextlib.suppress(ConnectionLost):
            relay(stream, dying, 5)
        dying.drop()
    until(lambda: relay(stream) == 0 and stream.value(LATE) == 0, 20, "all moved")
    assert (stream.value(READ), stream.value("SELECT COUNT(DISTINCT uid) FROM ems_message WHERE `offset` > 0")) == (
        60,
        60,
    )
    assert stream.value("SELECT MAX(`offset`) FROM ems_message WHERE `offset` > 0") == 60
