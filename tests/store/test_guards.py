"""What is written for a topic or group that is deleted meanwhile: it goes to the new one of that name, or is refused."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session as OrmSession

from emsworker import Ems
from emsworker.beat.relay import Relay
from emsworker.beat.schedules import fire_schedules
from emsworker.core.broadcast import NamedReader
from emsworker.core.config import Settings
from emsworker.core.errors import EmsError, TopicDeleted, TopicInUse, UnknownGroup, UnknownTopic
from emsworker.core.limits import Limit
from emsworker.core.model import Topic
from emsworker.core.schedule import Declared
from emsworker.store import topics
from emsworker.store.cluster import schedules
from emsworker.store.groups import limits
from emsworker.store.stream import broadcast, messages
from tests.support.machine import machine_s
from tests.support.servers import connect
from tests.support.streams import Stream
from tests.support.waiting import until

Send = Callable[[Ems, Stream], Any]


def later(app: Ems, stream: Stream) -> Any:
    return app.send("t", 1, countdown=0.01)


def many_later(app: Ems, stream: Stream) -> Any:
    return app.send_many("t", range(1200), delay="10ms")


def with_a_key_again(app: Ems, stream: Stream) -> Any:
    return app.send("t", 1, dedup_key="k")


def with_a_key(app: Ems, stream: Stream) -> Any:
    receipt = with_a_key_again(app, stream)
    assert receipt.created, "the key was taken in the topic that is gone"
    return receipt


def directly(app: Ems, stream: Stream) -> Any:
    return app.send("t", 1)


def in_a_transaction(app: Ems, stream: Stream) -> Any:
    with app.transaction() as tx:
        return tx.send("t", 1, dedup_key="tx")


@contextmanager
def _engine(stream: Stream) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(
        stream.url.replace("mysql://", "mysql+pymysql://"),
        poolclass=sqlalchemy.NullPool,
        isolation_level="REPEATABLE READ",
    )
    yield engine
    engine.dispose()


def on_pymysql(app: Ems, stream: Stream) -> Any:
    with connect(stream.url, autocommit=False) as connection:
        connection.query("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.query("SET SESSION sql_mode = ''")
        connection.query("SELECT COUNT(*) FROM ems_topic")  # its snapshot is older than what follows
        receipts = app.send_many("t", range(3), transaction=connection)
        connection.commit()
        return receipts


def on_pymysql_with_autocommit(app: Ems, stream: Stream) -> Any:
    with connect(stream.url, autocommit=True) as connection:
        return app.send("t", 1, transaction=connection)


def on_sqlalchemy(app: Ems, stream: Stream) -> Any:
    with _engine(stream) as engine, engine.begin() as connection:
        connection.execute(sqlalchemy.text("SELECT COUNT(*) FROM ems_topic"))
        return app.send("t", 1, transaction=connection, dedup_key="sa")


def on_an_orm_session(app: Ems, stream: Stream) -> Any:
    with _engine(stream) as engine, OrmSession(engine) as session, session.begin():
        return app.send("t", 1, transaction=session)


WAYS: list[Send] = [
    directly, later, many_later, with_a_key, in_a_transaction, on_pymysql, on_pymysql_with_autocommit, on_sqlalchemy, on_an_orm_session,
]  # fmt: skip


def orphans(stream: Stream) -> dict[str, int]:
    """Rows of any table that belong to a topic or group that there is not."""
    found = {}
    columns = stream.rows(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = DATABASE() "
        "AND column_name IN ('topic_id', 'group_id') AND table_name NOT IN ('ems_topic_guard', 'ems_result', 'ems_progress')"
    )  # the guard outlives its topic, and what handlers leave expires
    for table, column in columns:
        owner = "ems_topic" if column == "topic_id" else "ems_group"
        count = stream.value(f"SELECT COUNT(*) FROM {table} WHERE {column} NOT IN (SELECT id FROM {owner})")
        if count:
            found[table] = count
    return found


def anew(stream: Stream) -> Topic:
    """Delete the topic, and create it again."""
    old = topics.get_topic(stream.session, "t")
    assert old is not None
    topics.delete_topic(stream.session, old)
    return stream.topic("t", partitions=2)


def settle(stream: Stream) -> None:
    relay = Relay()
    until(
        lambda: relay(stream.session, Settings()) and not stream.value("SELECT COUNT(*) FROM ems_outbox"), 15, "moved"
    )


@pytest.mark.parametrize("send", WAYS)
def test_what_is_sent_to_a_topic_that_was_deleted_and_created_again_is_in_the_new_one(
    stream: Stream, send: Send
) -> None:
    app = stream.app()
    stream.topic("t")
    send(app, stream)
    new = anew(stream)
    sent = send(app, stream)
    settle(stream)
    count = len(sent) if isinstance(sent, list) else 1
    assert stream.rows("SELECT topic_id, COUNT(*) FROM ems_message WHERE `offset` > 0 GROUP BY topic_id") == [
        (new.id, count)
    ]
    assert orphans(stream) == {}


def repeat_after_snapshot(send: Callable[[], object], stream: Stream) -> None:
    """Send; a server with snapshot isolation has a caller repeat a transaction that is older than the new topic."""
    try:
        send()
    except Exception as error:
        assert "(1020," in str(error) and stream.value("SELECT @@GLOBAL.innodb_snapshot_isolation") == 1
        send()


@pytest.mark.parametrize("send", WAYS)
def test_what_is_sent_to_a_topic_that_was_deleted_is_refused_or_creates_it(stream: Stream, send: Send) -> None:
    strict, free = stream.app(auto_create=False), stream.app()
    topic = stream.topic("t")
    for app in (strict, free):
        send(app, stream)
        stream.rows("DELETE FROM ems_dedup")
    topics.delete_topic(stream.session, topic)
    with pytest.raises(UnknownTopic):
        send(strict, stream)
    assert stream.rows("SELECT * FROM ems_outbox") == [] == stream.rows("SELECT * FROM ems_topic")
    repeat_after_snapshot(lambda: send(free, stream), stream)
    settle(stream)
    assert stream.value("SELECT COUNT(DISTINCT topic_id) FROM ems_message WHERE `offset` > 0") == 1
    assert orphans(stream) == {}


def test_the_new_topic_decides_what_may_be_sent_to_it(stream: Stream) -> None:
    app = stream.app()
    topic = stream.topic("t", partitions=4)
    app.send("t", 1, partition=3, countdown=60)
    topics.delete_topic(stream.session, topic)
    stream.topic("t", partitions=2)
    with pytest.raises(EmsError, match="has 0 to 1"):
        app.send("t", 1, partition=3, countdown=60)
    assert stream.rows("SELECT * FROM ems_outbox") == []


def test_a_topic_is_not_deleted_under_an_open_transaction_and_nobody_else_waits_for_that(stream: Stream) -> None:
    app, other = stream.app(), stream.app()
    topic = stream.topic("t")
    stream.group(topic)
    with app.transaction() as tx:
        tx.send("t", "kept")
        began = machine_s()
        for send in WAYS:
            send(other, stream)
        stream.group(topic, "late")
        topics.change_topic(stream.session, topic)
        assert machine_s() - began < 4, "less than a wait for a lock takes"
        with pytest.raises(TopicInUse, match="still open"):
            topics.delete_topic(stream.session, topic, force=True)
        assert topics.get_topic(stream.session, "t") == topic
    settle(stream)
    assert stream.value("SELECT COUNT(*) FROM ems_message WHERE body = 'kept'") == 1
    topics.delete_topic(stream.session, topic, force=True)
    assert orphans(stream) == {}


def test_a_deletion_that_waits_for_a_transaction_deletes_what_that_has_committed(stream: Stream) -> None:
    app = stream.app()
    topic = stream.topic("t")
    with stream.new_session() as session:
        deleter = threading.Thread(target=lambda: topics.delete_topic(session, topic))
        with app.transaction() as tx:
            tx.send("t", 1, dedup_key="k")
            tx.send("t", 2, countdown=60)
            deleter.start()
            waits = "it waits"
            until(
                lambda: any("ems_topic_guard" in str(row[7]) for row in stream.rows("SHOW FULL PROCESSLIST")), 4, waits
            )
        deleter.join(20)
    assert not deleter.is_alive() and topics.get_topic(stream.session, "t") is None
    assert orphans(stream) == {}


def test_a_schedule_goes_on_when_its_topic_is_created_again(stream: Stream) -> None:
    stream.topic("t")
    schedules.declare(stream.session, [Declared("s", "every 1.0", "UTC", "last", "t", None, b"{}", b"1")])
    until(lambda: fire_schedules(stream.session, Settings()) and stream.rows("SELECT * FROM ems_outbox"), 10, "fired")
    old = topics.get_topic(stream.session, "t")
    assert old is not None
    topics.delete_topic(stream.session, old)
    fire_schedules(stream.session, Settings())
    assert stream.rows("SELECT * FROM ems_outbox") == [], "it rests"
    new = stream.topic("t")
    until(lambda: fire_schedules(stream.session, Settings()) and stream.rows("SELECT * FROM ems_outbox"), 10, "fired")
    assert stream.rows("SELECT DISTINCT topic_id FROM ems_outbox") == [(new.id,)]


def test_nothing_is_written_for_what_is_gone(stream: Stream) -> None:
    topic = stream.topic("t")
    group = stream.group(topic)
    messages.publish(stream.session, [])
    topics.delete_topic(stream.session, topic)
    for write in (limits.declare, limits.set_limit):
        with pytest.raises(UnknownGroup):
            write(stream.session, group.id, Limit(rate="5/s"))
    with pytest.raises(TopicDeleted):
        broadcast.take_positions(stream.session, NamedReader(topic.id, "r", b"0" * 16), {0: 1})
    with pytest.raises(TopicDeleted):
        stream.group(topic, "h")
    assert orphans(stream) == {}


@pytest.mark.slow
def test_a_topic_that_is_deleted_and_created_again_and_again_leaves_nothing_behind(stream: Stream) -> None:
    stream.topic("t")
    over = threading.Event()
    refused: list[BaseException] = []

    def keep_sending(send: Send) -> None:
        app = stream.app()
        while not over.is_set():
            try:
                send(app, stream)
            except BaseException as error:
                refused.append(error)

    ways = [with_a_key_again, *(send for send in WAYS if send not in (many_later, with_a_key))]
    threads = [threading.Thread(target=keep_sending, args=(send,)) for send in ways]
    for thread in threads:
        thread.start()
    try:
        for _ in range(15):
            old = topics.get_topic(stream.session, "t")
            if old is not None:
                topics.delete_topic(stream.session, old, force=True)
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
    assert refused == []
    assert orphans(stream) == {}
