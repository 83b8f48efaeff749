"""A claim whose messages end in any order: what one transaction writes, and what happens if its answer is lost."""

from contextlib import closing

import pytest

from emsworker import NotInHand
from emsworker.broker.mysql_channel import MysqlChannel
from emsworker.consume.claim_progress import ClaimWrite, Ended
from emsworker.consume.flusher import send as send_write
from emsworker.consume.in_hand import PulledClaim, PulledRun
from emsworker.core.errors import FenceLost
from emsworker.core.model import Claim, Group, Message, Order, Topic
from emsworker.core.process import forks
from emsworker.store.groups import claims
from tests.support.streams import TIMEOUT_S, Stream, failed

ENDED = NotInHand("settled")


@pytest.fixture
def topic(stream: Stream) -> Topic:
    return stream.topic()


def send(stream: Stream, count: int, key: str | None = None) -> None:
    stream.app().send_many("t", list(range(count)), key=key)


def pull(stream: Stream, topic: Topic, claim: Claim) -> tuple[PulledClaim, list[Message]]:
    """Take a claim's messages in hand."""
    pulled = PulledClaim(claim, topic.id, TIMEOUT_S, (0, 0), forks.Lock(), TIMEOUT_S)
    messages = []
    while pulled.take(taken := []):
        message = taken[0]
        messages.append(message)
    return pulled, messages


def ack(pulled: PulledClaim, *messages: Message) -> None:
    for message in messages:
        pulled.settle(Ended(message), ENDED)


def write(stream: Stream, pulled: PulledClaim) -> ClaimWrite:
    """Write down what is due."""
    due = pulled.plan(0.0, at_once=True)
    assert due is not None
    send_write(MysqlChannel(stream.session), due, holds=True)
    pulled.confirm(due)
    return due


def test_ends_in_order_move_the_acked_offset(stream: Stream, topic: Topic) -> None:
    group = stream.group(topic)
    send(stream, 4)
    pulled, messages = pull(stream, topic, stream.take(topic, group, stream.client()))
    ack(pulled, *messages[:2])
    write(stream, pulled)
    assert [row[:4] for row in stream.claims(group)] == [(1, 4, 2, "start")]
    ack(pulled, *messages[2:])
    write(stream, pulled)
    assert [row[:4] for row in stream.claims(group)] == [(1, 4, 4, "done")]
    assert pulled.closed


def test_an_end_before_a_lower_one_detaches_what_is_in_hand_without_the_cursor(stream: Stream, topic: Topic) -> None:
    group = stream.group(topic)
    send(stream, 5)
    pulled, messages = pull(stream, topic, stream.take(topic, group, stream.client()))
    ack(pulled, messages[2])
    with closing(stream.other()) as other, other.cursor() as cursor:
        cursor.execute("SELECT next_offset FROM ems_cursor WHERE group_id = %s FOR UPDATE", (group.id,))
        write(stream, pulled)
    assert {row[:4] for row in stream.claims(group)} == {(1, 5, 0, "start"), (1, 5, 5, "done")}
    assert stream.retries(group) == [(offset, 0, True, 0) for offset in (1, 2, 4, 5)]
    ack(pulled, messages[3], messages[0])
    write(stream, pulled)
    assert stream.retries(group) == [(offset, 0, True, 0) for offset in (2, 5)]
    pulled.settle(Ended(messages[1], released=True), ENDED)
    ack(pulled, messages[4])
    write(stream, pulled)
    assert stream.retries(group) == [(2, 0, False, 0)]
    assert [row[3] for row in stream.claims(group)] == ["done"]


@pytest.mark.parametrize("order", [Order.NONE, Order.KEY])
def test_a_failure_that_was_written_is_not_written_again(stream: Stream, topic: Topic, order: Order) -> None:
    """Its retry may be claimed by then, and must not be freed."""
    group = stream.group(topic, order=order)
    send(stream, 4)
    pulled, messages = pull(stream, topic, stream.take(topic, group, stream.client()))
    ack(pulled, messages[3])
    write(stream, pulled)
    pulled.settle(Ended(messages[1], failure=failed(2)), ENDED)
    due = pulled.plan(0.0, at_once=True)
    assert due is not None
    MysqlChannel(stream.session).flush(due.flush)
    due.in_doubt = True
    other = stream.claimant(topic, group, stream.client())
    again = MysqlChannel(stream.session)
    taken = again.take_retries(other) if order is Order.NONE else again.take_range(other, 0)
    assert isinstance(taken, Claim)
    assert pulled.plan(0.0) is due
    send_write(MysqlChannel(stream.session), due, holds=True)
    pulled.confirm(due)
    assert (2, 1, True, 0) in stream.retries(group)
    assert stream.value("SELECT COUNT(*) FROM ems_attempt") == 1


def test_what_was_detached_is_not_lost_if_the_answer_is(stream: Stream, topic: Topic) -> None:
    group = stream.group(topic)
    send(stream, 3)
    pulled, messages = pull(stream, topic, stream.take(topic, group, stream.client()))
    ack(pulled, messages[1])
    due = pulled.plan(0.0, at_once=True)
    assert due is not None
    assert due.rest is not None
    MysqlChannel(stream.session).detach(due.flush, due.rest)
    due.in_doubt = True
    ack(pulled, messages[0])
    send_write(MysqlChannel(stream.session), due, holds=True)
    pulled.confirm(due)
    write(stream, pulled)
    assert stream.retries(group) == [(3, 0, True, 0)]


def test_what_a_beat_has_given_to_others_cannot_be_ended(stream: Stream, topic: Topic) -> None:
    group = stream.group(topic)
    send(stream, 3)
    client = stream.client()
    pulled, messages = pull(stream, topic, stream.take(topic, group, client))
    stream.expire(client)
    stream.recover()
    ack(pulled, *messages)
    with pytest.raises(FenceLost):
        write(stream, pulled)
    pulled.lose(FenceLost("it is run elsewhere"))
    assert pulled.closed
    assert pulled.progress.unsaved == 3


def test_giving_back_keeps_what_has_ended(stream: Stream, topic: Topic) -> None:
    group = stream.group(topic)
    send(stream, 6)
    pulled, messages = pull(stream, topic, stream.take(topic, group, stream.client()))
    ack(pulled, messages[0], messages[3])
    pulled.give_back()
    write(stream, pulled)
    assert stream.retries(group) == [(2, 0, False, 0), (3, 0, False, 0)]
    assert [row[:4] for row in stream.claims(group)] == [(1, 4, 4, "done"), (5, 6, 4, "waiting")]
    assert isinstance(messages[1].run, PulledRun) is False, "it is in nobody's hand"


def test_a_message_put_back_below_one_in_hand_is_delivered_again(stream: Stream, topic: Topic) -> None:
    """As when of two threads that fetch the one with the lower message is interrupted, and nobody fetches any more."""
    group = stream.group(topic)
    send(stream, 3)
    pulled, messages = pull(stream, topic, stream.take(topic, group, stream.client()))
    pulled.put_back(messages[0])
    pulled.unwanted = True
    write(stream, pulled)
    ack(pulled, messages[1], messages[2])
    write(stream, pulled)
    assert pulled.closed
    assert stream.retries(group) == [(1, 0, False, 0)]
    assert [row[3] for row in stream.claims(group)] == ["done"]


def take(stream: Stream, topic: Topic, group: Group, source: str) -> claims.Claimant:
    """Take a claim whose answer the client never gets."""
    claimant = stream.claimant(topic, group, stream.client())
    channel = MysqlChannel(stream.session)
    if source == "retries" and group.order is Order.NONE:
        assert channel.take_retries(claimant)
    else:
        assert channel.take_range(claimant, 0, wait=True)
    return claimant


@pytest.mark.parametrize("source", ["stream", "retries"])
@pytest.mark.parametrize("order", list(Order))
def test_a_claim_that_its_client_does_not_know_is_recalled(
    stream: Stream, topic: Topic, order: Order, source: str
) -> None:
    group = stream.group(topic, order=order)
    send(stream, 3, key="k")
    if source == "retries":
        pulled, messages = pull(stream, topic, stream.take(topic, group, stream.client()))
        pulled.settle(Ended(messages[0], failure=failed(messages[0].offset)), ENDED)
        pulled.give_back()
        write(stream, pulled)
        stream.make_due()
    claimant = take(stream, topic, group, source)
    channel = MysqlChannel(stream.session)
    assert channel.recall(claimant)
    assert not channel.recall(claimant)
    assert stream.value("SELECT COUNT(*) FROM ems_claim WHERE state = 'start'") == 0
    assert all(not claimed for _, _, claimed, _ in stream.retries(group))
    again = channel.take_range if order is not Order.NONE or source == "stream" else None
    other = stream.claimant(topic, group, stream.client())
    if again is None:
        claim = channel.take_retries(other)
    elif order is Order.NONE:
        claim = channel.take_waiting(other)
    else:
        claim = channel.take_range(other, 0)
    assert isinstance(claim, Claim)
    assert claim.messages[0].attempt == (2 if source == "retries" else 1)
    assert stream.value("SELECT COUNT(*) FROM ems_attempt") == (1 if source == "retries" else 0)
