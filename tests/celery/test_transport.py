"""The transport of kombu on private servers: what kombu's own suite leaves open."""

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import combinations
from random import choice
from typing import Any

import kombu
import pymysql
import pytest
from amqp.exceptions import NotFound, PreconditionFailed
from hypothesis import given
from hypothesis import strategies as st
from kombu.transport.virtual.exchange import TopicExchange

from emsworker import Ems
from emsworker.core.errors import AccessDenied, ConfigError, MessageTooLarge, SchemaMissing, TopicDeleted
from emsworker.core.model import NewMessage
from emsworker.core.process.clock import ticks
from emsworker.core.process.polling import PollInterval
from emsworker.core.url import DatabaseUrl
from emsworker.integrations.celery.bindings import matches
from emsworker.integrations.celery.fanout import _BusReader
from emsworker.integrations.celery.names import bus_topic, queue_topic
from emsworker.integrations.celery.store.routing import ExchangeKind
from emsworker.store import topics
from emsworker.store.stream import broadcast
from tests.celery.brokers import Broker
from tests.celery.kombu_program import Program
from tests.celery.project import Project
from tests.support.waiting import until

WORK = kombu.Queue("work", routing_key="work")


def test_a_message_comes_back_as_it_was_sent(program: Callable[..., Program]) -> None:
    sender, reader = program(), program()
    headers = {"text": "ü", "number": 7, "list": [1, {"a": None}], "when": datetime(2030, 1, 2, tzinfo=UTC)}
    sender.send(b"\x00\xff" * 700_000, WORK, headers=headers, correlation_id="c", reply_to="r", priority=3)
    reader.consume(WORK)
    (message,) = reader.until(1)
    assert message.body == b"\x00\xff" * 700_000 and message.content_type == "application/data"
    assert message.headers == headers
    assert (message.properties["correlation_id"], message.properties["reply_to"]) == ("c", "r")
    info = message.delivery_info
    assert (info["exchange"], info["routing_key"], info["redelivered"], info["priority"]) == ("", "work", False, 3)
    message.ack()


def test_a_property_that_amqp_does_not_know_needs_no_text(program: Callable[..., Program]) -> None:
    one = program()
    one.consume(WORK)
    one.send("hello", WORK, message_id="m", signal=object())
    (message,) = one.until(1)
    assert (message.properties["message_id"], message.properties.get("signal")) == ("m", None)
    with pytest.raises(TypeError):
        one.send("hello", WORK, headers={"bad": object()})
    message.ack()


_HOSTILE = (
    "[]", "3", "null", '"x"', "{", '{"headers": [1]}', '{"headers": "x"}', '{"properties": 7}', '{"exchange": {}}',
    '{"routing_key": [1]}', '{"properties": {"priority": 1e999, "expiration": "soon"}}', '{"properties": {"expiration": 1e999}}',
    '{"properties": {"delivery_info": 3, "priority": {}}}', "[" * 100_000,
)  # fmt: skip


def test_what_others_write_into_a_queue_ends_no_program(
    broker: Broker, program: Callable[..., Program], rows: Callable[..., list[tuple[Any, ...]]]
) -> None:
    one = program()
    one.consume(WORK)
    stranger = Ems("stranger", url=broker.url.replace("ems+mysql", "mysql"))
    for text in _HOSTILE:
        stranger.send(queue_topic("work"), b"1", headers={"amqp": text})
    one.send("hello", WORK)

    def dead() -> list[str]:
        with suppress(socket.timeout):
            one.connection.drain_events(timeout=0.1)
        return [error for (error,) in rows("SELECT error FROM ems_dead")]

    until(lambda: len(one.got) + len(dead()) == len(_HOSTILE) + 1, 30, "each is delivered or a dead letter")
    assert any(message.body == b"hello" or message.body == "hello" for message in one.got), "it goes on"
    assert sum("not what kombu writes" in error for error in dead()) >= 7, dead()
    stranger.close()


def test_a_body_over_the_limit_is_refused(program: Callable[..., Program]) -> None:
    sender = program(max_message_bytes=1000)
    with pytest.raises(MessageTooLarge, match="1001 bytes"):
        sender.send(b"x" * 1001, WORK)


def test_without_confirmation_everything_is_sent_when_the_connection_closes(program: Callable[..., Program]) -> None:
    sender, reader = program(confirm_publish=False), program()
    for number in range(200):
        sender.send(number, WORK)
    sender.close()
    reader.consume(WORK)
    assert [message.decode() for message in reader.until(200)] == list(range(200))


@pytest.mark.parametrize("expected", [True, False])
def test_without_confirmation_one_that_cannot_be_sent_keeps_no_other_back(
    program: Callable[..., Program], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, expected: bool
) -> None:
    sender, reader = program(confirm_publish=False), program()
    sender.send("warm", WORK)
    producer = sender.channel._stream.broker.producer
    size_of = producer._size_of

    def sized(message: NewMessage) -> int:
        if b"huge" in message.body:  # max_allowed_packet was lowered since, or there is an error in our own code
            raise MessageTooLarge("too large for the server") if expected else ZeroDivisionError("too large")
        return size_of(message)

    monkeypatch.setattr(producer, "_size_of", sized)
    for number in range(100):
        sender.send("huge" if number == 50 else number, WORK)
    sender.close()
    reader.consume(WORK)
    assert [message.decode() for message in reader.until(100)] == ["warm", *(n for n in range(100) if n != 50)]
    (line,) = [one for one in caplog.messages if "cannot be sent" in one]
    assert queue_topic("work") in line and "too large" in line
    assert sender.channel._stream.sender._background.is_alive()


def test_without_confirmation_a_refusal_that_passes_is_waited_out(
    program: Callable[..., Program], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sender, reader, refused = program(confirm_publish=False), program(), list[int]()
    sender.send("warm", WORK)
    producer = sender.channel._stream.broker.producer
    really_send = producer.send_together

    def send_together(places: Any) -> Any:
        if len(refused) < 3:
            refused.append(len(places))
            raise AccessDenied("MySQL refused: (1045)")
        return really_send(places)

    monkeypatch.setattr(producer, "send_together", send_together)
    for number in range(50):
        sender.send(number, WORK)
    reader.consume(WORK)
    assert [message.decode() for message in reader.until(51)] == ["warm", *range(50)]
    assert len(refused) == 3
    assert len([one for one in caplog.messages if "not sent yet" in one and "MySQL refused" in one]) == 1, (
        "one line, not one a try"
    )


def test_a_queue_that_is_deleted_again_and_again_is_told(
    program: Callable[..., Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = program()

    def send(*_: Any) -> None:
        raise TopicDeleted(queue_topic("work"))

    monkeypatch.setattr(sender.channel._stream.sender, "send", send)
    with pytest.raises(TopicDeleted, match="work"):
        sender.send(1, WORK)


def test_the_prefetch_bounds_what_is_in_hand_and_acks_make_room(program: Callable[..., Program]) -> None:
    sender, reader, other = program(), program(), program()
    for number in range(5):
        sender.send(number, WORK)
    reader.consume(WORK, prefetch_count=2)
    first = reader.until(2)
    assert reader.drain(0.5) == [0, 1]
    other.consume(WORK, prefetch_count=2)
    other.until(2)
    assert other.drain(0.5) == [2, 3]
    first[1].ack()
    assert [message.decode() for message in reader.until(3)] == [0, 1, 4]


def test_a_message_that_is_requeued_too_often_is_dead_and_can_be_requeued(
    program: Callable[..., Program], rows: Callable[..., list[tuple[Any, ...]]]
) -> None:
    queue = kombu.Queue("limited", routing_key="limited", queue_arguments={"x-delivery-limit": 3})
    sender, reader = program(), program()
    sender.send("poison", queue)
    reader.consume(queue)
    for count in range(1, 4):
        message = reader.until(count)[-1]
        assert message.delivery_info["redelivered"] == (count > 1)
        try:
            raise RuntimeError("the worker was lost")
        except RuntimeError:
            message.requeue()
    until(lambda: rows("SELECT attempts FROM ems_dead") == [(3,)], 10, "it is dead")
    assert reader.drain(0.5) == ["poison"] * 3
    ((kind, error),) = rows("SELECT error_type, error FROM ems_dead")
    assert kind == "RuntimeError" and "Traceback" in error and "the worker was lost" in error


def test_a_rejected_message_is_a_dead_letter(
    program: Callable[..., Program], rows: Callable[..., list[tuple[Any, ...]]]
) -> None:
    sender, reader = program(), program()
    sender.send("odd", WORK, headers={"task": "shop.pay"})
    reader.consume(WORK)
    reader.until(1)[0].reject()
    until(lambda: rows("SELECT task, reason FROM ems_dead") == [("shop.pay", "rejected by its consumer")], 10, "dead")


def test_what_a_cancelled_consumer_was_not_given_goes_to_others(program: Callable[..., Program]) -> None:
    sender, reader, other = program(), program(), program()
    for number in range(10):
        sender.send(number, WORK)
    consumer = reader.consume(WORK)
    until(lambda: len(reader.connection.connection.inbox) == 10, 30, "it has claimed all")
    consumer.cancel()
    other.consume(WORK)
    assert sorted(message.decode() for message in other.until(10)) == list(range(10))
    assert not any(message.delivery_info["redelivered"] for message in other.got)


def test_settled_in_any_order_and_closed_nothing_is_lost_or_repeated(program: Callable[..., Program]) -> None:
    sender, reader, other = program(), program(), program()
    for number in range(30):
        sender.send(number, WORK)
    reader.consume(WORK, prefetch_count=30)
    for message in reader.until(30)[::-3]:
        message.ack()
    reader.close()
    other.consume(WORK)
    left = [number for number in range(30) if number % 3 != 2]
    assert sorted(message.decode() for message in other.until(len(left))) == left


def test_exchanges_feed_exchanges_and_every_copy_is_sent_or_none(program: Callable[..., Program]) -> None:
    sender, reader = program(), program()
    news, sport = kombu.Exchange("news", "topic"), kombu.Exchange("sport", "fanout")
    paper = kombu.Queue("paper", news, routing_key="#")
    fans = [kombu.Queue(f"fans{number}", sport) for number in range(2)]
    for queue in (paper, *fans):
        queue(sender.channel).declare()
    sport(sender.channel).bind_to(news, routing_key="sport.*")
    sender.send("goal", exchange=news, routing_key="sport.football")
    sender.send("rain", exchange=news, routing_key="weather")
    reader.consume(paper, *fans)
    reader.until(4)
    assert sorted(reader.drain(0.3)) == ["goal", "goal", "goal", "rain"]
    assert {message.delivery_info["routing_key"] for message in reader.got} == {"sport.football", "weather"}


def test_an_exchange_cannot_be_declared_as_another_type(program: Callable[..., Program]) -> None:
    one = program()
    kombu.Exchange("kind", "topic")(one.channel).declare()
    with pytest.raises(PreconditionFailed, match="'topic'"):
        kombu.Exchange("kind", "fanout")(one.channel).declare()
    with pytest.raises(NotFound):
        kombu.Queue("nowhere")(one.channel).queue_declare(passive=True)


def test_a_reply_queue_has_no_rows_and_gets_what_is_sent_after_its_binding(
    program: Callable[..., Program], rows: Callable[..., list[tuple[Any, ...]]]
) -> None:
    server, client, third = program(), program(), program()
    bus = kombu.Exchange("bus", "fanout")
    server.channel.exchange_declare("bus", "fanout")
    inboxes = [kombu.Queue(f"inbox@{number}", bus, durable=False, auto_delete=True, expires=10) for number in range(2)]
    server.send("too early", exchange=bus)
    client.consume(inboxes[0], no_ack=True)
    third.consume(inboxes[1], no_ack=True)
    server.send("hello", exchange=bus)
    assert [message.decode() for message in (*client.until(1), *third.until(1))] == ["hello", "hello"]
    server.send("for one", routing_key="inbox@1")
    assert [message.decode() for message in third.until(2)] == ["hello", "for one"]
    assert client.drain(0.5) == ["hello"]
    assert rows("SELECT COUNT(*) FROM ems_queue") == [(0,)]
    counts = dict(
        rows(
            "SELECT t.name, COUNT(*) FROM ems_message m JOIN ems_topic t ON t.id = m.topic_id AND m.`offset` > 0 GROUP BY t.id"
        )
    )
    assert counts == {bus_topic("bus"): 1, bus_topic(""): 1}, "one row each, however many read it"


def test_a_command_comes_before_the_messages_that_were_sent_after_it(
    program: Callable[..., Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that is revoked, and then sent, does not run: its worker finds both at once."""
    sender, worker = program(), program()
    control = kombu.Exchange("control", "fanout")
    sender.channel.exchange_declare("control", "fanout")
    worker.consume(WORK, kombu.Queue("commands", control, durable=False, auto_delete=True, expires=10), no_ack=True)
    sender.send("first", WORK)
    worker.until(1)
    sent, came, look, read = threading.Event(), threading.Event(), _BusReader._look, broadcast.read_few

    def read_late(*args: Any) -> Any:
        came.wait(1)  # for a message that must not come meanwhile
        return read(*args)

    monkeypatch.setattr(_BusReader, "_look", lambda reader: sent.wait(30) and look(reader))
    monkeypatch.setattr(broadcast, "read_few", read_late)
    sender.send("revoke", exchange=control)
    sender.send("task", WORK)
    sent.set()
    until(lambda: len(worker.drain(0.05)) > 1, 30, "one of them has come")
    came.set()
    assert [message.decode() for message in worker.until(3)] == ["first", "revoke", "task"]


@pytest.mark.parametrize("how", ["in one process", "from another one", "one by one"])
def test_no_message_overtakes_a_command_that_was_sent_before_it(
    broker: Broker, program: Callable[..., Program], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """However a worker learns of a task, by a wake-up, by polling, or by asking for it: it has the revocation then."""
    look = _BusReader._look  # as on a busy machine, its thread sometimes gets its turn late
    monkeypatch.setattr(_BusReader, "_look", lambda reader: reader.sleep(choice([0, 0.02])) or look(reader))
    worker = program()
    sender = Program(broker, 100) if how == "in one process" else program()  # 100: it shares the worker's stream
    control, count = kombu.Exchange("control", "fanout"), 20 if how == "one by one" else 100
    sender.channel.exchange_declare("control", "fanout")
    commands = kombu.Queue("commands", control, durable=False, auto_delete=True, expires=60)
    worker.consume(*([commands] if how == "one by one" else [commands, WORK]), no_ack=True)
    WORK(sender.channel).declare()

    def has(number: int) -> bool:
        if how == "one by one":
            if (message := worker.channel.basic_get("work", no_ack=True)) is not None:
                worker.deliver(0)
                worker.got.append(message)
        else:
            worker.deliver()
        return len(worker.got) == 2 * number + 2

    for number in range(count):
        sender.send(f"command {number}", exchange=control)
        sender.send(f"task {number}", WORK)
        until(partial(has, number), 30, "both have come")
    expected = [f"{what} {number}" for number in range(count) for what in ("command", "task")]
    assert [message.decode() for message in worker.got] == expected
    sender.close()


def test_a_command_that_is_read_late_keeps_back_what_was_sent_after_it(
    program: Callable[..., Program], rows: Callable[..., list[tuple[Any, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, worker = program(), program()
    control = kombu.Exchange("control", "fanout")
    sender.channel.exchange_declare("control", "fanout")
    worker.consume(WORK, kombu.Queue("commands", control, durable=False, auto_delete=True, expires=10), no_ack=True)
    sender.send("first", WORK)
    worker.until(1)
    may_look, look = threading.Event(), _BusReader._look
    monkeypatch.setattr(_BusReader, "_look", lambda reader: may_look.wait(30) and look(reader))
    sender.send("revoke", exchange=control)
    sender.send("task", WORK)
    until(lambda: rows("SELECT MAX(next_offset) FROM ems_cursor") == [(3,)], 30, "the task is claimed")
    assert worker.drain(0.3) == ["first"]
    may_look.set()
    assert [message.decode() for message in worker.until(3)] == ["first", "revoke", "task"]


def test_heartbeats_do_not_make_a_reader_look_more_often(
    program: Callable[..., Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, look = 0, _BusReader._look

    def counted(reader: _BusReader) -> bool:
        nonlocal looks
        looks += reader is client.channel._stream.local._reader  # other tests of this process have left some, too
        return look(reader)

    server, client = program(), program()
    monkeypatch.setattr(_BusReader, "_look", counted)
    events = kombu.Exchange("events", "topic")
    inbox = kombu.Queue("inbox", events, routing_key="#", durable=False, auto_delete=True, expires=10)
    client.consume(inbox, no_ack=True)
    server.send("hello", exchange=events, routing_key="task.sent", declare=[events])
    client.until(1)

    def looks_a_second() -> float:
        before, began = looks, ticks()
        until(lambda: ticks() > began + 1, 5, "a second is over")
        return (looks - before) / (ticks() - began)

    until(lambda: looks_a_second() <= 6, 30, "it looks seldom, as nothing has come for two seconds")
    for number in range(2, 5):
        server.send("beat", exchange=events, routing_key="worker.heartbeat")
        client.until(number)
    assert looks_a_second() <= 6, "heartbeats have changed its pace"


def test_a_reply_does_not_wait_for_the_pause_of_an_idle_program(program: Callable[..., Program]) -> None:
    """An idle reader waits for a tenth of the time without news; a caller that has just sent a request waits less."""
    server, client = program(), program()
    replies = kombu.Queue("replies", exclusive=True)
    client.consume(replies)
    server.consume(WORK)
    client.send(["ready"], replies)
    client.until(1)
    reader = client.channel._stream.local._reader
    assert reader is not None
    reader._interval = PollInterval(3600, 3600)  # what nobody expects is not looked for any more
    client.send(["request"], WORK, reply_to=replies.name)
    (request,) = server.until(1)
    asked = reader.polls
    assert until(lambda: reader.polls > asked + 5, 10, "it looks, again and again, while the reply is under way")
    server.send(["reply"], routing_key=request.properties["reply_to"])
    request.ack()
    assert [message.decode() for message in client.until(2)] == [["ready"], ["reply"]]
    assert not reader._expects_reply, "once it has come"
    client.send(["more"], WORK, reply_to="elsewhere")
    assert not reader._expects_reply, "a queue of another program is looked at by that one"


@pytest.mark.parametrize("confirm", [True, False])
def test_a_queue_that_is_made_anew_gets_what_is_sent_by_the_remembered_way(
    program: Callable[..., Program], rows: Callable[..., list[tuple[Any, ...]]], confirm: bool
) -> None:
    sender, other = program(confirm_publish=confirm), program()
    sender.send("to the old one", WORK)
    until(lambda: rows("SELECT COUNT(*) FROM ems_message WHERE `offset` > 0") == [(1,)], 10, "it is sent")
    other.channel.queue_delete(WORK.name)
    other.consume(WORK)
    began = ticks()
    until(lambda: confirm or ticks() > began + 1.1, 5, "without confirmation, a second is over")
    sender.send("to the new one", routing_key=WORK.name)
    assert [message.decode() for message in other.until(1)] == ["to the new one"]


def test_the_way_to_a_queue_is_looked_up_seldom_and_its_settings_are_seen(
    program: Callable[..., Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, get_topic = 0, topics.get_topic

    def counted(session: Any, name: str) -> Any:
        nonlocal looks
        looks += 1
        return get_topic(session, name)

    sender, other = program(), program()
    sender.send("first", WORK)
    other.consume(kombu.Queue(WORK.name, routing_key=WORK.name, max_priority=9))
    monkeypatch.setattr(topics, "get_topic", counted)
    monkeypatch.setattr("emsworker.integrations.celery.bindings._FRESH_S", 0.0)
    sender.send("by the remembered way", routing_key=WORK.name)
    assert looks == 0
    monkeypatch.setattr("emsworker.integrations.celery.bindings._PROVEN_S", 0.0)
    sender.send("by a new one", routing_key=WORK.name, priority=9)
    assert looks == 1
    assert sorted(message.decode() for message in other.until(3)) == ["by a new one", "by the remembered way", "first"]


def test_a_binding_of_another_program_is_used_within_a_second(program: Callable[..., Program]) -> None:
    sender, other = program(), program()
    news = kombu.Exchange("news", "topic")
    first, second = (kombu.Queue(name, news, routing_key="sport.*", durable=True) for name in ("first", "second"))
    sender.send("one", exchange=news, routing_key="sport.chess", declare=[first])
    other.consume(second)
    began = ticks()
    until(lambda: ticks() > began + 1.1, 5, "a second is over")
    sender.send("two", exchange=news, routing_key="sport.chess")
    assert [message.decode() for message in other.until(1)] == ["two"]


def test_a_heartbeat_wakes_nobody(program: Callable[..., Program]) -> None:
    woken: list[int] = []
    sender, reader = program(), program()
    events = kombu.Exchange("events", "topic")
    reader.consume(kombu.Queue("inbox", events, routing_key="#", durable=False, auto_delete=True, expires=10))
    sender.channel.connection.stream.broker.wakes.append(lambda topic_id, partitions: woken.append(topic_id))
    sender.send("beat", exchange=events, routing_key="worker.heartbeat")
    assert not woken
    sender.send("news", exchange=events, routing_key="worker.online")
    assert len(woken) == 1
    assert [message.decode() for message in reader.until(2)] == ["beat", "news"]


def test_what_is_too_large_or_missing_among_few_messages_is_read_by_and_by(program: Callable[..., Program]) -> None:
    sender, reader = program(), program()
    bus = kombu.Exchange("bus", "fanout")
    reader.consume(kombu.Queue("inbox", bus, durable=False, auto_delete=True, expires=10), no_ack=True)
    bodies = ["small", "L" * (5 << 20), "small, too"]
    for body in bodies:
        sender.send(body, exchange=bus)
    assert [message.decode() for message in reader.until(3)] == bodies


def test_a_program_that_consumes_no_longer_looks_no_longer(program: Callable[..., Program]) -> None:
    one, other = program(), program()
    bus = kombu.Exchange("bus", "fanout")
    inbox = kombu.Queue("inbox", bus, durable=False, auto_delete=True, expires=1)
    for count in (2, 4):
        with one.connection.channel() as channel:
            with kombu.Consumer(channel, [inbox, WORK], on_message=one.got.append, no_ack=True):
                other.send("hello", exchange=bus, declare=[bus])
                other.send("work", WORK)
                one.until(count)
            queues = channel._stream.local
        until(lambda queues=queues: queues._reader is None, 30, "nothing is left to look for")


def test_queues_that_nobody_uses_expire(
    program: Callable[..., Program], rows: Callable[..., list[tuple[Any, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emsworker.integrations.celery.feeder._SWEEP_S", 0.2)
    one, other = program(), program()
    used, unused = (kombu.Queue(name, routing_key=name, expires=1.5) for name in ("used", "unused"))
    other.send("gone with it", unused)
    one.consume(used)
    until(lambda: rows("SELECT name FROM ems_queue") == [(b"used",)], 30, "the other one is deleted")
    until(lambda: not rows("SELECT 1 FROM ems_topic WHERE name = %s", queue_topic("unused")), 30, "and its topic")
    other.send("still there", used)
    assert [message.decode() for message in one.until(1)] == ["still there"]


def test_size_and_purge_leave_what_is_in_hand(program: Callable[..., Program]) -> None:
    sender, reader = program(), program()
    for number in range(6):
        sender.send(number, WORK)
    reader.consume(WORK, prefetch_count=2)
    held = reader.until(2)
    bound = WORK(sender.channel)
    assert bound.queue_declare(passive=True).message_count == 4
    assert bound.purge() == 4
    assert bound.queue_declare(passive=True).message_count == 0
    for message in held:
        message.ack()
    sender.send("new", WORK)
    assert reader.until(3)[-1].decode() == "new"


def test_a_far_eta_waits_in_the_stream_and_a_near_one_in_the_worker(
    program: Callable[..., Program], rows: Callable[..., list[tuple[Any, ...]]]
) -> None:
    sender, reader = program(eta_threshold_s=2), program()
    for seconds in (1.0, 4.0, 600.0):
        sender.send(seconds, WORK, headers={"eta": (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()})
    assert rows("SELECT COUNT(*) FROM ems_outbox") == [(2,)]
    reader.consume(WORK)
    assert [message.decode() for message in reader.until(1)] == [1.0]
    assert [message.decode() for message in reader.until(2)] == [1.0, 4.0]
    assert rows("SELECT COUNT(*) FROM ems_outbox") == [(1,)]


def test_killed_connections_are_not_noticed(
    program: Callable[..., Program], rows: Callable[..., list[tuple[Any, ...]]]
) -> None:
    sender, reader = program(), program()
    reader.consume(WORK, prefetch_count=10)
    for number in range(30):
        sender.send(number, WORK)
        if number % 10 == 5:
            for (thread,) in rows(
                "SELECT id FROM information_schema.PROCESSLIST WHERE id <> CONNECTION_ID() AND db = DATABASE()"
            ):
                with suppress(pymysql.err.OperationalError):
                    rows("KILL %s", thread)
    seen = 0
    while seen < 30:
        reader.until(seen + 1)
        for message in reader.got[seen:]:
            message.ack()
        seen = len(reader.got)
    assert sorted(message.decode() for message in reader.got) == list(range(30))


def test_a_lost_lease_is_a_connection_error(
    program: Callable[..., Program], rows: Callable[..., list[tuple[Any, ...]]]
) -> None:
    sender, reader, other = program(), program(), program()
    sender.send("once", WORK)
    reader.consume(WORK)
    reader.until(1)
    rows("DELETE FROM ems_client")  # as if the process had been stopped for long

    def lost() -> bool:
        try:
            reader.connection.drain_events(timeout=0.2)
        except TimeoutError:
            return False
        except reader.connection.connection_errors:
            return True
        return False

    until(lost, 60, "it is told")
    reader.connection.collect()  # as Celery does then
    other.consume(WORK)
    assert other.until(1)[0].decode() == "once"


def test_an_unreachable_server_is_told_at_once(broker: Broker) -> None:
    connection = kombu.Connection(broker.dead)
    began = time.monotonic()
    with pytest.raises(connection.connection_errors):
        connection.connect()
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("options", [{"delivery_limit": 2.5}, {"lease": 5}])
def test_a_wrong_option_ends_a_program_at_once(broker: Broker, options: dict[str, Any]) -> None:
    connection = kombu.Connection(broker.url, transport_options=options)
    _refused_at_once(connection, ConfigError, next(iter(options)))


def test_a_database_without_tables_is_refused_and_stays_as_it_is(database: str) -> None:
    connection = kombu.Connection(f"ems+{database}")
    _refused_at_once(connection, SchemaMissing, "run `ems migrate`")
    at = DatabaseUrl.parse(database)
    account = {"host": at.host, "port": at.port, "user": at.user, "password": at.password}
    with pymysql.connect(**account, database=at.database) as seen, seen.cursor() as cursor:
        cursor.execute("SHOW TABLES")
        assert cursor.fetchall() == ()


def test_a_wrong_password_is_refused_at_once(broker: Broker) -> None:
    wrong = DatabaseUrl.parse(broker.url.removeprefix("ems+")).password
    _refused_at_once(kombu.Connection(broker.url.replace(f":{wrong}@", ":nope@")), AccessDenied, "denied")


def _refused_at_once(connection: kombu.Connection, kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match) as refused:
        connection.ensure_connection(lambda error, pause: pytest.fail(f"tried again after {error!r}"))
    with pytest.raises(kind, match=match):
        _ = connection.default_channel  # as programs use that send; it has no limit of tries
    assert not isinstance(refused.value, connection.connection_errors + connection.channel_errors)


@pytest.mark.parametrize("command", [("worker", "-c", "1"), ("purge", "-f")])
def test_a_command_is_refused_once_by_name(start: Callable[..., Project], command: tuple[str, ...]) -> None:
    project = start()
    project.environ["EMS_LEASE_S"] = "soon"
    ran = project.celery(*command)
    said = ran.stdout + ran.stderr
    assert ran.returncode == 1 and "EMS_LEASE_S" in said and "Trying again" not in said, said


def test_a_message_that_is_requeued_too_often_tells_how_often(
    program: Callable[..., Program], rows: Callable[..., list[tuple[Any, ...]]]
) -> None:
    one = program(delivery_limit=3)
    one.consume(WORK)
    one.send("hello", WORK)
    for count in (1, 2, 3):
        one.until(count)[-1].requeue()
    (dead,) = until(lambda: rows("SELECT error_type, error FROM ems_dead"), 30, "it is a dead letter")
    assert "Requeued" in dead[0] and "delivered 3 times" in dead[1], dead


def test_a_forked_child_leaves_its_parents_messages_alone(program: Callable[..., Program]) -> None:
    sender, reader = program(), program()
    for number in range(3):
        sender.send(number, WORK)
    reader.consume(WORK)
    held = reader.until(3)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            reader.connection.collect()
            sender.send("from the child", kombu.Queue("childs", routing_key="childs"))
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for message in held:
        message.ack()
    reader.consume(kombu.Queue("childs", routing_key="childs"))
    assert [message.decode() for message in reader.until(4)][3:] == ["from the child"]
    assert reader.channel._pull is not None and reader.channel._pull.losses == 0


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("t.*", "t.1", True),
        ("t", "t.1", False),
        ("#", "", True),
        ("a.#", "a", True),
        ("#.z", "a.b.z", True),
        ("a.*.c", "a.c", False),
        ("a.#.c", "a.c", True),
        ("a.b", "axb", False),
    ],
)
def test_words_of_topic_exchanges(pattern: str, key: str, expected: bool) -> None:
    assert matches(ExchangeKind.TOPIC, pattern, key) is expected


_HOSTILE_PATTERNS = (
    ".".join(["#"] * 60) + ".q", ".".join(["#", "*"] * 60) + ".q", ".".join(["#.a"] * 60), ".".join(["*.#"] * 60 + ["q"]),
)  # fmt: skip


@pytest.mark.parametrize("pattern", _HOSTILE_PATTERNS)
def test_no_pattern_holds_a_publisher_up(pattern: str) -> None:
    before = time.process_time()
    for count in (4, 30, 120):
        assert not matches(ExchangeKind.TOPIC, pattern, ".".join(["a"] * count + ["z"]))
    assert time.process_time() - before < 1.0


@pytest.mark.skipif(TopicExchange.wildcards["*"].startswith(".*?"), reason="to this kombu * may be several words")
@given(
    pattern=st.lists(st.sampled_from(["a", "b", "*", "#"]), min_size=1, max_size=6).map(".".join),
    key=st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=6).map(".".join),
)
def test_patterns_mean_what_they_mean_to_kombu(pattern: str, key: str) -> None:
    """But that ``#`` may also stand for no word at all, as in AMQP: then the pattern without it is met."""
    exchange = TopicExchange(None)

    def met(words: list[str]) -> bool:
        return bool(exchange._match(exchange.key_to_pattern(".".join(words)), key))

    words = pattern.split(".")
    places = [number for number, word in enumerate(words) if word == "#"]
    without = [set(gone) for count in range(len(places) + 1) for gone in combinations(places, count)]
    variants = [[word for number, word in enumerate(words) if number not in gone] for gone in without]
    assert matches(ExchangeKind.TOPIC, pattern, key) is any(met(one) for one in variants if one)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x-max-length", "a"), ("x-max-length", -1), ("x-max-length", 1 << 64), ("x-expires", "x" * 10_000),
        ("x-expires", 0), ("x-message-ttl", [1]), ("x-message-ttl", 1e300), ("x-max-priority", float("nan")),
        ("x-delivery-limit", "many"), ("x-delivery-limit", 1 << 40),
    ],
)  # fmt: skip
@pytest.mark.parametrize("exclusive", [False, True], ids=["stored", "local"])
def test_a_wrong_argument_is_named(
    program: Callable[..., Program],
    rows: Callable[..., list[tuple[Any, ...]]],
    argument: str,
    value: Any,
    exclusive: bool,
) -> None:
    one = program()
    with pytest.raises(PreconditionFailed, match=f"{argument} is .*give a whole number from") as caught:
        kombu.Queue("odd", queue_arguments={argument: value}, exclusive=exclusive)(one.channel).declare()
    assert len(str(caught.value)) < 400
    assert rows("SELECT name FROM ems_queue") == [], "nothing half made"


def test_a_name_that_is_too_long_is_named(program: Callable[..., Program]) -> None:
    one = program()
    name = "n" * 100_000
    events = kombu.Exchange("events", "topic")
    for declared in (
        kombu.Queue(name), kombu.Queue("x", events, routing_key=name), kombu.Exchange(name), kombu.Queue("\ud800"),
    ):  # fmt: skip
        with pytest.raises(PreconditionFailed, match=r"100000 bytes; give one of at most 255|no UTF-8 form") as caught:
            declared(one.channel).declare()
        assert len(str(caught.value)) < 400


def test_an_expiration_that_is_no_number_is_refused(program: Callable[..., Program]) -> None:
    one = program()
    WORK(one.channel).declare()
    message = one.channel.prepare_message(b"x", properties={"expiration": "abc" * 1000})
    with pytest.raises(PreconditionFailed, match=r"expiration is 'abc.*give a whole number") as caught:
        one.channel.basic_publish(message, routing_key="work")
    assert len(str(caught.value)) < 400
