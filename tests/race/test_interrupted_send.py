"""An exception from outside, as timeout libraries raise them, at every call of the producer's own code."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from emsworker import Ems
from emsworker.core.ids import new_uid
from emsworker.core.model import NewMessage
from emsworker.publish import producer
from emsworker.publish.producer import _Ticket
from emsworker.store.stream import messages
from tests.support.interruptions import Cut, Timeout
from tests.support.streams import Stream
from tests.support.waiting import until

pytestmark = pytest.mark.own_process

MOST_CALLS = 1000


def messages_of(stream: Stream) -> list[str]:
    return [bytes(body).decode() for (body,) in stream.rows("SELECT body FROM ems_message WHERE kind = 'message'")]


@pytest.mark.timeout(120)  # without its cure a thread waits for ever
@pytest.mark.parametrize("queues", [False, True])
def test_an_interrupted_send_leaves_nobody_waiting(stream: Stream, queues: bool) -> None:
    app = stream.app()
    app.send("t", "first")
    topic = app.stream.catalog.topic("t")
    with ThreadPoolExecutor(1) as pool:
        for number in range(MOST_CALLS):
            message = NewMessage(new_uid(), None, None, b"", b"%d" % number, topic=topic)
            with Cut(number, (producer.__file__,)) as cut, contextlib.suppress(Timeout):
                if queues:
                    app.stream.producer._submit(_Ticket([message]))
                else:
                    app.stream.producer.send(topic, [message])
            assert pool.submit(app.send, "t", f"after {number}").result(10).created, number
            if not cut.raised:
                break
    bodies = messages_of(stream)
    assert len(bodies) == len(set(bodies)) and str(number) in bodies
    assert sum("after" in body for body in bodies) == number + 1 > 20


def test_the_exception_of_a_leader_is_its_own(stream: Stream, app: Ems, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others, whose messages it sends with its own, are confirmed by the next leader."""
    app.send("t", "first")
    sender = app.stream.producer
    topic = app.stream.catalog.topic("t")
    publish, leader = messages.publish, threading.get_ident()

    def interrupted(*args: object) -> object:
        bases = publish(*args)  # type: ignore[arg-type]
        if threading.get_ident() == leader:
            raise Timeout
        return bases

    monkeypatch.setattr(producer, "publish", interrupted)
    own = _Ticket([NewMessage(new_uid(), None, None, b"", b"own", topic=topic)])
    with ThreadPoolExecutor(3) as pool:
        sender._busy = True
        others = [pool.submit(app.send, "t", f"other {n}") for n in range(3)]
        with sender._leading:  # so that they do not think that nobody leads
            until(lambda: len(sender._queue) == 3, 15, "the others queue")
            own.leads = True
            sender._queue.append(own)
        with pytest.raises(Timeout):
            while not own.done:
                sender._lead(own)
        sender._leave(own)
        assert all(one.result(15).created for one in others)
    bodies = messages_of(stream)
    assert sorted(bodies) == ["first", "other 0", "other 1", "other 2", "own"]


def test_two_leaders_of_a_moment_may_both_name_the_next_one(stream: Stream) -> None:
    """On a busy machine one that waits sees nobody lead although leadership is just being passed on."""
    app = stream.app()
    app.send("t", "first")
    sender, topic = app.stream.producer, app.stream.catalog.topic("t")
    next_one = _Ticket([NewMessage(new_uid(), None, None, b"", b"next", topic=topic)])
    sender._busy = True
    sender._queue.append(next_one)
    sender._hand_over()
    sender._hand_over()
    sender._wait(next_one)
    assert next_one.leads
    sender._lead(next_one)
    sender._leave(next_one)
    assert sorted(messages_of(stream)) == ["first", "next"]
