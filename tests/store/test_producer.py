"""Publishing: offsets, confirmation, batching, refusals, what travels with a message."""

import dataclasses
import os
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from emsworker import Ems, Middleware
from emsworker.core.errors import (
    ConfigError,
    ContentRefused,
    EncodeError,
    InvalidName,
    MessageTooLarge,
    PublishTimeout,
    TopicRuleError,
    UnknownGroup,
    UnknownTopic,
)
from emsworker.core.ids import new_uid, uid_text
from emsworker.core.model import NewMessage, Receipt, Topic, TopicRule
from emsworker.publish.outgoing import Outgoing
from emsworker.publish.producer import _Ticket
from emsworker.store import topics
from emsworker.store.groups import claims
from tests.support import rows
from tests.support.machine import machine_s
from tests.support.streams import AppFactory, Stream, in_threads, stored, wait_until


def test_8_producers_and_3_topics_have_contiguous_offsets(stream: Stream, new_app: AppFactory) -> None:
    for name in ("a", "b", "c"):
        stream.topic(name, partitions=2)

    def produce(number: int) -> list[Receipt]:
        app = new_app()
        receipts = []
        for n in range(20):
            receipts += [app.send(topic, n, key=f"{number}-{n}") for topic in ("a", "b", "c")]
            receipts += app.send_many("a", range(3))
        return receipts

    receipts = [receipt for made in in_threads(8, produce) for receipt in made]
    for name, count in (("a", 8 * 20 * 4), ("b", 160), ("c", 160)):
        found = stored(stream, name)
        assert sum(map(len, found.values())) == count
        for offsets in found.values():
            assert offsets == list(range(1, len(offsets) + 1))
        told = sorted((r.partition, r.offset) for r in receipts if r.topic == name)
        assert told == sorted((partition, offset) for partition, these in found.items() for offset in these)


@pytest.mark.alone
def test_concurrent_sends_share_statements(stream: Stream, app: Ems) -> None:
    app.send("t", 0)
    before = stream.status("Com_insert")["Com_insert"]

    def produce(number: int) -> None:
        for n in range(25):
            app.send("t", n)

    in_threads(16, produce)
    inserts = stream.status("Com_insert")["Com_insert"] - before
    assert stored(stream, "t") == {0: list(range(1, 402))}
    assert inserts < 200, f"{inserts} inserts for 400 messages"


def test_send_many_is_one_statement(stream: Stream, app: Ems) -> None:
    app.send("t", 0)
    before = stream.status("Questions", "Com_insert")
    receipts = app.send_many("t", range(900))
    after = stream.status("Questions", "Com_insert")
    assert after["Com_insert"] - before["Com_insert"] == 1
    assert after["Questions"] - before["Questions"] <= 3, "two of them are the questions for the status"
    assert [receipt.offset for receipt in receipts] == list(range(2, 902))


def test_who_publishes_alone_needs_no_counter(stream: Stream) -> None:
    app, other = stream.app(allocator="mysql"), stream.app(allocator="mysql")
    assert [app.send("t", n).offset for n in range(3)] == [1, 2, 3]
    assert stream.rows("SELECT next_offset FROM ems_partition") == [(1,)], "nobody has raised the counter"
    assert [other.send("t", n).offset for n in range(3)] == [4, 5, 6]
    assert [app.send("t", n).offset for n in range(3)] == [7, 8, 9], (
        "its place was taken: the server looks for another one"
    )
    assert [other.send("t", n).offset for n in range(3)] == [10, 11, 12]


def test_nobody_publishes_below_a_log_start_that_was_raised_meanwhile(stream: Stream, app: Ems) -> None:
    app.send_many("t", range(5))
    rows.trim(stream.rows, 100)
    assert app.send("t", 0).offset == 100
    assert app.send("t", 0).offset == 101


def test_send_many_of_nothing(app: Ems) -> None:
    assert app.send_many("t", []) == []


def test_a_key_stays_in_its_partition(stream: Stream, app: Ems) -> None:
    stream.topic("t", partitions=4)
    found: dict[str, set[int | None]] = {}
    for n in range(80):
        key = f"key-{n % 20}"
        found.setdefault(key, set()).add(app.send("t", n, key=key).partition)
    assert all(len(partitions) == 1 for partitions in found.values())
    assert len(set.union(*found.values())) == 4
    assert {app.send("t", 0, partition=2).partition for _ in range(3)} == {2}
    assert {app.send("t", 0).partition for _ in range(8)} == {0, 1, 2, 3}
    for wrong in (4, -1, "1", 1.5):
        with pytest.raises(InvalidName, match=r"0 to 3|whole number"):
            app.send("t", 0, partition=wrong)


def test_refusals_are_typed_and_write_nothing(stream: Stream, app: Ems) -> None:
    topic = stream.topic("t", max_message_bytes=100)
    refused: list[tuple[type[Exception], dict[str, Any]]] = [
        (MessageTooLarge, {"body": "x" * 101}),
        (EncodeError, {"body": object()}),
        (EncodeError, {"body": 1, "serializer": "smoke"}),
        (EncodeError, {"body": 1, "headers": {"a": 1}}),
        (InvalidName, {"body": 1, "headers": {"ems-task": "x"}}),
        (InvalidName, {"body": 1, "key": "x" * 256}),
        (InvalidName, {"body": 1, "key": 7}),
        (InvalidName, {"body": 1, "uid": "x"}),
    ]
    for kind, given in refused:
        with pytest.raises(kind):
            app.send("t", **given)
        with pytest.raises(kind):
            options = {name: value for name, value in given.items() if name != "body"}
            app.send_many("t", [1, Outgoing("t", given["body"], **options)])
    with pytest.raises(InvalidName, match="'u'"):
        app.send_many("t", [Outgoing("u", 1)])
    for rule in (TopicRule.READ, TopicRule.NONE):
        topics.change_topic(stream.session, _with_rule(topic, rule))
        app.stream.catalog.forget("t")
        with pytest.raises(TopicRuleError, match=repr(rule.value)):
            app.send("t", 1)
    topics.change_topic(stream.session, _with_rule(topic, TopicRule.WRITE))
    app.stream.catalog.forget("t")
    assert stored(stream, "t") == {}
    assert app.send("t", "x" * 100).offset == 1


def _with_rule(topic: Topic, rule: TopicRule) -> Topic:
    return dataclasses.replace(topic, rule=rule)


def test_the_global_switch(stream: Stream) -> None:
    with pytest.raises(TopicRuleError, match="publishing"):
        stream.app(publishing=False).send("t", 1)
    assert stored(stream, "t") == {}


def test_a_topic_that_may_not_be_read_offers_no_work(stream: Stream) -> None:
    app = stream.app()
    app.send("t", 1)
    topic = app.stream.catalog.topic("t")
    group = stream.group(topic)
    assert claims.find_work(stream.session, [group.id]).work
    for rule, readable in ((TopicRule.WRITE, False), (TopicRule.NONE, False), (TopicRule.READ, True)):
        topics.change_topic(stream.session, _with_rule(topic, rule))
        assert bool(claims.find_work(stream.session, [group.id]).work) is readable


def test_send_many_of_large_bodies_is_cut_into_packets(stream: Stream) -> None:
    app = stream.app(publish_timeout_s=20.0)
    limit = stream.value("SELECT @@max_allowed_packet")
    size = min(1 << 20, limit // 4)
    count = limit // size + 4
    receipts = app.send_many("t", [bytes([n]) * size for n in range(count)])
    assert [receipt.offset for receipt in receipts] == list(range(1, count + 1))
    assert stream.value("SELECT SUM(LENGTH(body)) FROM ems_message WHERE `offset` > 0") == count * size


def test_topics_and_groups_are_created_on_first_use(stream: Stream, app: Ems) -> None:
    app.send("new", 1)
    topic = app.stream.catalog.topic("new")
    assert (topic.partitions, topic.rule, topic.max_message_bytes) == (1, TopicRule.READ_WRITE, 4 << 20)
    group = app.stream.catalog.group(topic, "g")
    assert (group.timeout_s, group.max_attempts) == (60.0, 16)
    assert stream.cursor(group) == 1


def test_or_refused(stream: Stream) -> None:
    app = stream.app(auto_create=False)
    with pytest.raises(UnknownTopic, match=r"'new'.*auto_create"):
        app.send("new", 1)
    with pytest.raises(UnknownTopic, match=r"'new'.*auto_create"):
        app.send_task("far.away", [1], topic="new")
    topic = stream.topic("there")
    with pytest.raises(UnknownGroup, match=r"'g'.*auto_create"):
        app.stream.catalog.group(topic, "g")
    assert stream.rows("SELECT name FROM ems_topic") == [("there",)]
    assert stream.rows("SELECT name FROM ems_group") == []


def test_two_creators_at_once_make_one_topic(stream: Stream) -> None:
    apps = [stream.app() for _ in range(6)]
    found = in_threads(
        6,
        lambda n: (
            apps[n].stream.catalog.topic("t").id,
            apps[n].stream.catalog.group(apps[n].stream.catalog.topic("t"), "g").id,
        ),
    )
    assert len(set(found)) == 1
    assert stream.value("SELECT COUNT(*) FROM ems_cursor") == 1


def test_a_deleted_topic_is_created_again_or_an_error_of_ours(stream: Stream, app: Ems) -> None:
    strict = Ems("strict", url=stream.url, auto_create=False)
    stream.apps.append(strict)
    app.send("t", 1)
    strict.send("t", 1)
    topic = app.stream.catalog.topic("t")
    topics.delete_topic(stream.session, topic)
    with pytest.raises(UnknownTopic, match="auto_create is off"):
        strict.send("t", 2)
    with pytest.raises(UnknownTopic, match="deleted"):
        stream.group(topic)
    with pytest.raises(UnknownTopic, match="deleted"):
        topics.change_topic(stream.session, topic)
    assert stream.value("SELECT COUNT(*) FROM ems_message WHERE `offset` > 0") == 0
    assert app.send("t", 3).offset == 1


def test_everything_travels_with_a_message(stream: Stream, app: Ems) -> None:
    uid = uid_text(new_uid())
    headers = {"trace": "é", "x": ""}
    body = {"n": 1, "at": datetime(2026, 11, 20, tzinfo=UTC)}
    before = stream.value("SELECT NOW(6)")
    receipt = app.send("t", body, key=b"\x00\xff", tag="tag", headers=headers, uid=uid)
    assert receipt == Receipt(uid, "t", 0, 1, True)
    topic = app.stream.catalog.topic("t")
    claim = stream.take(topic, stream.group(topic), stream.client())
    message = claim.messages[0]
    assert (message.id, message.key, message.tag, message.body) == (uid, b"\x00\xff", "tag", body)
    assert dict(message.headers) == headers
    assert (message.topic, message.partition, message.offset, message.attempt) == ("t", 0, 1, 1)
    age = message.born_at - before.replace(tzinfo=UTC)
    assert timedelta(0) <= age < timedelta(seconds=20)
    assert stream.value("SELECT producer_id FROM ems_message WHERE `offset` > 0")


def test_codecs_round_trip_through_the_server(stream: Stream) -> None:
    app = stream.app(accept=("json", "msgpack", "yaml", "pickle"))
    kinds = [(name, by) for name in ("json", "msgpack", "yaml", "pickle") for by in (None, "zlib", "zstd")]
    body = {"n": [1, 2.5, None], "text": "é\U0001f600" * 50}
    for serializer, compression in kinds:
        app.send("t", body, serializer=serializer, compression=compression)
    topic = app.stream.catalog.topic("t")
    claimant = claims.Claimant(topic, stream.group(topic), stream.client(), 100, 1 << 20, app.stream.decoder)
    claim = claims.take_range(stream.session, claimant, 0)
    assert claim
    assert [message.body for message in claim.messages] == [body] * len(kinds)
    refused = stream.take(topic, stream.group(topic, "json_only"), stream.client()).messages
    for message, (serializer, _) in zip(refused, kinds, strict=True):
        if serializer == "json":
            assert message.body == body
            continue
        with pytest.raises(ContentRefused):
            _ = message.body


def test_the_same_uid_twice_is_one_row(stream: Stream, app: Ems) -> None:
    uid = uid_text(new_uid())
    stream.topic("t", partitions=3)
    first = app.send("t", 1, uid=uid, partition=1)
    second = app.send("t", 2, uid=uid, partition=2)
    assert (first.created, second.created) == (True, False)
    assert (second.partition, second.offset) == (first.partition, first.offset)
    assert stored(stream, "t") == {1: [1]}
    assert app.send("other", 1, uid=uid).created


def test_the_same_uid_within_one_send_many(stream: Stream, app: Ems) -> None:
    one, two = uid_text(new_uid()), uid_text(new_uid())
    receipts = app.send_many("t", [Outgoing("t", n, uid=uid) for n, uid in enumerate([one, two, one, one])])
    assert [receipt.created for receipt in receipts] == [True, True, False, False]
    assert {receipt.offset for receipt in receipts[2:]} == {receipts[0].offset}
    assert stream.value("SELECT COUNT(*) FROM ems_message WHERE kind = 'message'") == 2


def test_the_same_uid_from_many_processes_at_once(stream: Stream, new_app: AppFactory) -> None:
    apps = [new_app() for _ in range(6)]
    apps[0].stream.catalog.topic("t")
    for _ in range(5):
        uid = uid_text(new_uid())
        receipts = in_threads(6, lambda n, uid=uid: apps[n].send("t", n, uid=uid))  # type: ignore[misc]
        assert Counter(receipt.created for receipt in receipts) == {True: 1, False: 5}
        assert len({receipt.offset for receipt in receipts}) == 1
    assert stream.value("SELECT COUNT(*) FROM ems_message WHERE kind = 'message'") == 5


def test_a_locked_partition_ends_in_a_timeout_of_ours(stream: Stream) -> None:
    app = stream.app(publish_timeout_s=1.0)
    app.send("t", 1)
    with stream.other() as other, other.cursor() as cursor:
        cursor.execute("SELECT * FROM ems_partition FOR UPDATE")
        waits = stream.lock_waits()
        with pytest.raises(PublishTimeout, match=r"1 s.*[Ll]ock"):
            app.send("t", 2)
        assert stream.lock_waits() == waits + 1, "one wait of InnoDB takes 5 s: it is not tried again"
        other.rollback()
    assert app.send("t", 3).offset == 2


def test_a_server_that_does_not_answer_ends_in_a_timeout_of_ours(stream: Stream) -> None:
    app = stream.app(publish_timeout_s=1.0)
    app.send("t", 1)
    with stream.other() as other, other.cursor() as cursor:
        cursor.execute("LOCK TABLES ems_message READ")  # an insert waits for 50 s
        began = machine_s()
        with pytest.raises(PublishTimeout, match="not confirmed within 1 s"):
            app.send("t", 2)
        assert machine_s() - began < 15
        cursor.execute("UNLOCK TABLES")
    app.send("t", 3)
    assert stream.value("SELECT COUNT(*) FROM ems_message WHERE kind = 'message'") in (2, 3)


class _CtrlC:
    """The lock of a thread that a signal ends while it queues."""

    def acquire(self, timeout: float) -> None:
        raise KeyboardInterrupt

    def release(self) -> None:
        pytest.fail("nobody may hand the lead to a thread that is gone")


def test_a_caller_that_is_interrupted_leaves_nobody_waiting(stream: Stream) -> None:
    app = stream.app()
    app.send("t", 0)
    producer = app.stream.producer
    message = NewMessage(new_uid(), None, None, b"", b"never", topic=app.stream.catalog.topic("t"))
    ticket = _Ticket([message])
    ticket.turn = _CtrlC()  # type: ignore[assignment]
    with stream.other() as other, other.cursor() as cursor:
        cursor.execute("SELECT * FROM ems_partition FOR UPDATE")
        leader = threading.Thread(target=app.send, args=("t", 1))
        leader.start()
        wait_until(lambda: producer._busy and not producer._queue, what="the leader's flush")
        with pytest.raises(KeyboardInterrupt):
            producer._submit(ticket)
        other.rollback()
    leader.join(20)
    assert not producer._busy
    assert app.send("t", 2).offset == 3


def test_hooks_see_every_message(stream: Stream) -> None:
    seen: list[Any] = []

    class Tracing(Middleware):
        def before_publish(self, outgoing: Outgoing) -> None:
            outgoing.headers["trace"] = "1"

        def after_publish(self, outgoing: Outgoing, receipt: Receipt) -> None:
            seen.append((outgoing.body, receipt.offset))

    app = Ems("test", url=stream.url, middleware=[Tracing()])
    stream.apps.append(app)
    headers = {"mine": "x"}
    app.send("t", "a", headers=headers)
    app.send_many("t", ["b", "c"], headers=headers)
    assert seen == [("a", 1), ("b", 2), ("c", 3)]
    assert headers == {"mine": "x"}
    assert stream.value("SELECT COUNT(*) FROM ems_message WHERE headers LIKE '%%trace%%'") == 3


def test_a_forked_child_sends_over_a_connection_of_its_own(stream: Stream, app: Ems) -> None:
    app.send("t", "parent")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if app.send("t", "child").offset == 2 else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert app.send("t", "parent again").offset == 3


def test_an_allocator_of_the_users_own_hands_out_offsets(stream: Stream) -> None:
    app = stream.app(allocator="tests.support.paper_allocator:PaperAllocator")
    assert [one.offset for one in app.send_many("t", range(3))] == [1, 2, 3]
    other = stream.app()
    assert other.send("t", 3).offset == 4
    assert app.send("t", 4).offset == 5, "an offset that is taken is found out, and MySQL asked"
    assert type(app.stream.producer._allocator).__name__ == "PaperAllocator"
    with pytest.raises(ConfigError, match="no_such_module"):
        stream.app(allocator="no_such_module:Allocator").send("t", 5)
    with pytest.raises(ConfigError, match="must be mysql, redis, or a class"):
        stream.app(allocator="paper")
