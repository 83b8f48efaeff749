"""An exception from outside, as timeout libraries raise them, at every call of a wait for messages or for results."""

import threading
from collections.abc import Callable
from contextlib import suppress
from unittest.mock import Mock

import kombu
import pytest

from emsworker.consume.pull import PullConsumer
from emsworker.core.errors import StoreUnavailable
from emsworker.core.process import forks, wake
from emsworker.integrations.celery import channel, feeder, inbox, messages, poller, transport
from emsworker.integrations.celery.poller import ResultPoller, Waiter
from tests.celery.kombu_program import Program
from tests.support.interruptions import Cut, Timeout
from tests.support.waiting import until

pytestmark = pytest.mark.own_process

FILES = tuple(str(one.__file__) for one in (channel, forks, inbox, messages, threading, transport, wake))
SORTING = tuple(str(one.__file__) for one in (channel, feeder, messages))
MOST_CALLS = 1000
EACH = 3
WORK = kombu.Queue("work")
EVENTS = kombu.Exchange("events", type="fanout")
OWN = kombu.Queue("own", EVENTS, durable=False, auto_delete=True, expires=600)


@pytest.mark.timeout(300)  # without its cure a lock stays taken
@pytest.mark.parametrize(("queue", "no_ack"), [(WORK, False), (OWN, True)], ids=["stream", "local"])
def test_an_interrupted_drain_keeps_no_message(
    program: Callable[..., Program], queue: kombu.Queue, no_ack: bool
) -> None:
    sender, reader = program(), program()
    reader.consume(queue, no_ack=no_ack)
    sent = 0
    for number in range(MOST_CALLS):
        for _ in range(EACH):
            if queue is WORK:
                sender.send(sent, WORK)
            else:
                sender.send(sent, exchange=EVENTS, declare=[EVENTS])
            sent += 1
        with Cut(number, FILES) as cut, suppress(Timeout):
            reader.deliver(10)
        got = reader.got if len(reader.got) >= sent else reader.until(sent)
        assert sorted(one.decode() for one in got[-EACH:]) == list(range(sent - EACH, sent)), number
        assert len(got) == sent and not any(one.delivery_info["redelivered"] for one in got), number
        if not no_ack:
            for one in got[-EACH:]:
                one.ack()
            assert not reader.channel._unacked, number
        if not cut.raised:
            break
    else:
        raise AssertionError("it takes more calls")
    assert number > 30


def test_an_error_in_a_callback_keeps_no_message_behind_its_own(program: Callable[..., Program]) -> None:
    sender, reader = program(), program()
    consumer = kombu.Consumer(reader.channel, [WORK])

    def fail_once(message: kombu.Message) -> None:
        reader.got.append(message)
        if len(reader.got) == 1:
            raise ZeroDivisionError

    consumer.on_message = fail_once
    consumer.consume()
    for number in range(EACH):
        sender.send(number, WORK)
    until(lambda: len(reader.connection.connection.inbox) == EACH, 30, "all have come")
    with pytest.raises(ZeroDivisionError):
        reader.deliver(10)
    assert sorted(one.decode() for one in reader.until(EACH)) == list(range(EACH))


def test_a_message_by_which_a_worker_fails_is_delivered_once_more_and_then_refused(
    program: Callable[..., Program], rows: Callable[..., list[tuple[object, ...]]]
) -> None:
    """The exception may have come from outside; one that Celery cannot have written is refused at once."""
    sender, reader = program(), program()
    consumer = kombu.Consumer(reader.channel, [WORK])
    fails = {"once": 1, "twice": 2}

    def give(message: kombu.Message) -> None:
        reader.got.append(message)
        body = message.decode()
        if fails.get(body, 0):
            fails[body] -= 1
            raise Timeout
        message.ack()

    give.__module__ = "celery.worker.consumer.consumer"
    consumer.on_message = give
    consumer.consume()
    for body in ("once", "twice", "fine"):
        sender.send(body, WORK)
    sender.send([[], {}, {}], WORK, headers={"task": 5, "id": "id"})
    assert sorted(one.decode() for one in reader.until(5)) == ["fine", "once", "once", "twice", "twice"]
    dead = until(lambda: len(found := rows("SELECT reason FROM ems_dead")) == 2 and found, 30, "two dead letters")
    assert sorted("is not what Celery writes" in str(reason) for (reason,) in dead) == [False, True]
    assert fails == {"once": 0, "twice": 0} and not reader.channel._unacked


def test_a_consumer_that_could_not_be_opened_is_made_again(
    program: Callable[..., Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = program()
    one.send("hello", WORK)
    with monkeypatch.context() as patch, pytest.raises(StoreUnavailable):
        patch.setattr(PullConsumer, "open", Mock(side_effect=StoreUnavailable("not reached")))
        one.channel.basic_get("work")
    assert one.channel.basic_get("work").decode() == "hello"


@pytest.mark.timeout(300)
def test_an_interrupted_get_keeps_no_message(program: Callable[..., Program]) -> None:
    sender, reader = program(), program()
    WORK(reader.channel).declare()
    for number in range(MOST_CALLS):
        sender.send(number, WORK)
        message = None
        with Cut(number, SORTING) as cut, suppress(Timeout):
            message = reader.channel.basic_get("work")
        message = message or until(lambda: reader.channel.basic_get("work"), 30, f"message {number}")
        assert message.decode() == number
        message.ack()
        if not cut.raised:
            break
    else:
        raise AssertionError("it takes more calls")
    assert number > 10


@pytest.mark.timeout(300)
def test_an_interrupted_wait_for_a_result_leaves_others_theirs() -> None:
    stored: dict[bytes, bytes] = {}
    results = ResultPoller(lambda keys: {key: stored[key] for key in keys if key in stored})
    for number in range(MOST_CALLS):
        own, other = Waiter(), Waiter()
        own.add(b"own")
        other.add(b"%d" % number)
        with Cut(number, (str(poller.__file__), threading.__file__, str(wake.__file__))) as cut, suppress(Timeout):
            results.wait(own, 0.01)
        thread = threading.Thread(target=results.wait, args=(other, 30.0), daemon=True)
        thread.start()
        stored[b"%d" % number] = b"value"
        thread.join(15)
        assert list(other.values) == [(b"%d" % number, b"value")], number
        if not cut.raised:
            break
    else:
        raise AssertionError("it takes more calls")
    assert number > 10
