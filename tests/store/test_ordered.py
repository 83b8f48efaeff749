"""Groups that run in order, as the store sees them."""

from typing import Any

import pytest

from emsworker import Ems
from emsworker.core.model import Claim, ClaimSource, Group, Order, Topic
from emsworker.core.work import AvailableWork, NothingClaimed
from emsworker.store.groups import cancel, claims, ordered, progress
from tests.support import rows
from tests.support.streams import Stream, failed, flush_of, in_threads, offsets


def filled(stream: Stream, order: Order, keys: str, **settings: Any) -> tuple[Topic, Group, str]:
    """One partition; a message for each letter, which is its key, "-" for none."""
    topic = stream.topic()
    group = stream.group(topic, order=order, **settings)
    app: Ems = stream.app()
    for key in keys:
        app.send(topic.name, key, key=None if key == "-" else key)
    return topic, group, stream.client()


def take(stream: Stream, topic: Topic, group: Group, client: str, batch: int = 500) -> Claim:
    claim = ordered.take_next(stream.session, stream.claimant(topic, group, client, batch), 0)
    assert claim
    return claim


def take_retries(stream: Stream, topic: Topic, group: Group, client: str, batch: int = 500) -> Claim:
    claim = ordered.take_next(stream.session, stream.claimant(topic, group, client, batch), 0)
    assert claim and claim.source is ClaimSource.RETRY
    return claim


@pytest.mark.parametrize("order", [Order.PARTITION, Order.KEY])
def test_among_writers_an_adopted_range_leaves_the_cursor_where_it_was(stream: Stream, order: Order) -> None:
    topic, group, first = filled(stream, order, "abcdef")
    take(stream, topic, group, first, batch=3)
    stream.expire(first)
    stream.recover()
    stream.session._open().among_writers = True
    client = stream.client()
    adopted = take(stream, topic, group, client, batch=2)
    assert (adopted.lo, adopted.hi, stream.cursor(group)) == (1, 2, 4)
    for lo, cursor in ((3, 4), (4, 7)):
        progress.flush(stream.session, flush_of(adopted, topic, adopted.hi))
        adopted = take(stream, topic, group, client)
        assert (adopted.lo, stream.cursor(group)) == (lo, cursor)


@pytest.mark.parametrize("order", [Order.PARTITION, Order.KEY])
def test_a_partition_has_one_owner_at_a_time(stream: Stream, order: Order) -> None:
    topic, group, _ = filled(stream, order, "ab" * 40)
    clients = [stream.client() for _ in range(8)]
    sessions = [stream.new_session() for _ in clients]
    took: list[tuple[int, int]] = []
    owned = [0]

    def drain(number: int) -> None:
        while not took or took[-1][1] < 80:
            claim = ordered.take_next(sessions[number], stream.claimant(topic, group, clients[number], 3), 0)
            if claim:
                owned[0] += 1
                assert owned[0] == 1, "two owners at once"
                took.append((claim.lo, claim.hi))
                owned[0] -= 1
                progress.flush(sessions[number], flush_of(claim, topic, claim.hi))

    in_threads(8, drain)
    assert [lo for lo, _ in took] == list(range(1, 81, 3)), "in the order of the stream"
    for session in sessions:
        session.close()


def test_a_retry_holds_up_its_partition_until_its_time(stream: Stream) -> None:
    topic, group, me = filled(stream, Order.PARTITION, "abcd")
    claim = take(stream, topic, group, me)
    progress.give_back(stream.session, flush_of(claim, topic, 2, finished=True, failures=[failed(2, 1, 60.0)]), 2)
    assert claims.find_work(stream.session, [group.id]).work == {}
    assert ordered.take_next(stream.session, stream.claimant(topic, group, me), 0) is NothingClaimed.EMPTY
    stream.make_due()
    assert claims.find_work(stream.session, [group.id]).work == {group.id: AvailableWork(partitions=(0,))}
    again = take_retries(stream, topic, group, me)
    assert offsets(again) == [2]
    assert claims.find_work(stream.session, [group.id]).work == {}, "somebody is at work"
    assert ordered.take_next(stream.session, stream.claimant(topic, group, stream.client()), 0) is NothingClaimed.EMPTY
    progress.flush(stream.session, flush_of(again, topic, 2, done_offsets=[(2, 2, 7)]))
    assert claims.find_work(stream.session, [group.id]).work == {group.id: AvailableWork(partitions=(0,))}
    assert offsets(take(stream, topic, group, me)) == [3, 4], "what was given back comes first"


def test_a_key_waits_behind_its_failed_message_and_no_other_does(stream: Stream) -> None:
    topic, group, me = filled(stream, Order.KEY, "abacab")
    claim = take(stream, topic, group, me, 3)
    assert claim.blocked_keys == frozenset()
    progress.flush(stream.session, flush_of(claim, topic, 3, failures=[failed(1, 1, 60.0)], blocked=[(3, b"a")]))
    behind = take(stream, topic, group, me)
    assert (offsets(behind), behind.blocked_keys) == ([4, 5, 6], frozenset({b"a"}))
    progress.flush(stream.session, flush_of(behind, topic, 6, blocked=[(5, b"a")]))
    assert ordered.take_next(stream.session, stream.claimant(topic, group, me), 0) is NothingClaimed.EMPTY, (
        "not due, or blocked"
    )
    stream.rows("UPDATE ems_retry SET due_at = NOW(6) WHERE `offset` = 1")
    assert claims.find_work(stream.session, [group.id]).work == {group.id: AvailableWork(partitions=(0,))}
    chain = take_retries(stream, topic, group, me, 2)
    assert offsets(chain) == [1, 3, 5] and [m.attempt for m in chain.messages] == [2, 1, 1]
    again = flush_of(chain, topic, 5, done_offsets=[(1, 2, 7)], failures=[failed(3, 1, 60.0)], blocked=[(5, b"a")])
    progress.flush(stream.session, again)
    assert ordered.take_next(stream.session, stream.claimant(topic, group, me), 0) is NothingClaimed.EMPTY
    assert stream.retries(group) == [(3, 1, False, 0), (5, 0, False, 0)]


def test_the_next_of_a_key_comes_when_the_one_before_is_dead_or_gone(stream: Stream) -> None:
    topic, group, me = filled(stream, Order.KEY, "aabcda")
    claim = take(stream, topic, group, me)
    blocked = [(2, b"a"), (6, b"a")]
    progress.flush(stream.session, flush_of(claim, topic, 6, failures=[failed(1, 1, 0.0)], blocked=blocked))
    chain = take_retries(stream, topic, group, me, 1)
    assert offsets(chain) == [1, 2], "only what is near comes along"
    ended = flush_of(chain, topic, 2, failures=[failed(1, 2, dead="no"), failed(2, 1, None)])
    progress.flush(stream.session, ended)
    assert offsets(take_retries(stream, topic, group, me)) == [6]


def test_a_dead_owner_of_a_chain_leaves_its_head_due(stream: Stream) -> None:
    topic, group, me = filled(stream, Order.KEY, "aaab")
    claim = take(stream, topic, group, me)
    blocked = [(2, b"a"), (3, b"a")]
    progress.flush(stream.session, flush_of(claim, topic, 4, failures=[failed(1, 1, 0.0)], blocked=blocked))
    chain = take_retries(stream, topic, group, me)
    assert offsets(chain) == [1, 2, 3]
    progress.flush(stream.session, flush_of(chain, topic, 1, done_offsets=[(1, 2, 7)]))
    stream.expire(me)
    assert len(stream.recover()) == 1
    back = stream.client()
    for offset in (2, 3):
        alone = take_retries(stream, topic, group, back)
        assert offsets(alone) == [offset], "under suspicion, so one by one and in order"
        progress.flush(stream.session, flush_of(alone, topic, offset, done_offsets=[(offset, 1, 7)]))
    assert stream.retries(group) == []


def test_a_crash_keeps_the_order_of_a_partition(stream: Stream) -> None:
    topic, group, me = filled(stream, Order.PARTITION, "abcd")
    claim = take(stream, topic, group, me)
    progress.flush(stream.session, flush_of(claim, topic, 1))
    stream.expire(me)
    assert len(stream.recover()) == 1
    assert claims.find_work(stream.session, [group.id]).work == {group.id: AvailableWork(partitions=(0,))}
    again = take(stream, topic, group, stream.client())
    assert offsets(again) == [2, 3, 4]


def test_what_waits_for_its_time_is_not_passed(stream: Stream) -> None:
    topic, group, me = filled(stream, Order.PARTITION, "abcd")
    claim = take(stream, topic, group, me, 2)
    progress.give_back(stream.session, flush_of(claim, topic, 1, finished=True), 1)
    rows.hold_back(stream.rows, 60)
    assert claims.find_work(stream.session, [group.id]).work == {}
    assert ordered.take_next(stream.session, stream.claimant(topic, group, me), 0) is NothingClaimed.EMPTY
    rows.hold_back(stream.rows, None)
    assert offsets(take(stream, topic, group, me)) == [2]


def test_the_next_of_a_key_comes_when_the_one_before_is_cancelled(stream: Stream) -> None:
    topic, group, me = filled(stream, Order.KEY, "aba")
    claim = take(stream, topic, group, me)
    later = flush_of(claim, topic, 3, failures=[failed(1, 1, 60.0)], blocked=[(3, b"a")])
    progress.flush(stream.session, later)
    uid = stream.value("SELECT uid FROM ems_message WHERE `offset` = 1")
    assert cancel.cancel(stream.session, topic.id, uid) is cancel.StateAtCancel.WAITING
    assert offsets(take_retries(stream, topic, group, me)) == [3], "nothing is before it any more"
