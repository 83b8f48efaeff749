"""Interleavings that a busy machine leads to now and then, constructed step by step: the model has to follow them.

In each of them two transactions do what a quick machine nearly always does in one.
"""

import runpy
from collections import Counter

import pytest

from emsworker.beat import recovery
from emsworker.consume.claim_progress import ClaimProgress
from emsworker.core.codec import encode_json
from emsworker.core.ids import new_uid
from emsworker.core.model import Claim, Group, NewMessage, Topic
from emsworker.core.model import Order as Ordering
from emsworker.store.engine.session import Session
from emsworker.store.groups import claims, ordered, progress
from emsworker.store.stream import messages
from tests.support.streams import Stream, failed, flush_of, offsets
from verification.model import trace
from verification.model.follower import Follower
from verification.model.state import Order

_ATTEMPTS = 3


@pytest.fixture
def traced(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> Stream:
    """A stream whose own sessions mark their transactions, as the workers' do in a trace."""
    monkeypatch.setattr(Session, "send", Session.send)  # whatever the site replaces is put back at the end
    monkeypatch.setattr(recovery, "recover", recovery.recover)
    runpy.run_path(str(trace.SITE / "sitecustomize.py"))
    for statement in trace.statements():
        stream.rows(statement)
    return stream


def _filled(stream: Stream, count: int, order: Ordering = Ordering.NONE) -> tuple[Topic, Group]:
    app = stream.app()
    app.send_many("t", range(count))
    topic = app.stream.catalog.topic("t")
    return topic, stream.group(topic, max_attempts=_ATTEMPTS, order=order)


def _followed(
    stream: Stream, group: Group, order: Order = Order.NONE
) -> tuple[list[trace.Transaction], Counter[object]]:
    """Hold what was recorded against the model: the transactions, and how often each kind of step was taken."""
    rows = stream.rows("SELECT id, tx, what, tab, was, now FROM trace_log ORDER BY id")
    transactions = trace.read(rows, group.id)
    follower = Follower(transactions, order, _ATTEMPTS)
    follower.follow()
    return transactions, Counter(label[0] for label in follower.steps)


def _all_run(stream: Stream) -> tuple[Topic, Group, str, Claim]:
    """A claim of 1..5, of which 4 and 5 are tombstones; its messages have run, and the flusher has written it down."""
    topic, group = _filled(stream, 3)
    batch = messages.PartitionBatch(topic.id, 0, [_message()], messages.Placement(6))
    messages.publish(stream.session, [batch])
    assert messages.close_hole_at(stream.session, topic.id, 0, 4, 0.0)
    me = stream.client()
    claim = stream.take(topic, group, me, batch=5)
    assert (claim.lo, claim.hi, offsets(claim)) == (1, 5, [1, 2, 3])
    progress.flush(stream.session, flush_of(claim, topic, 3))
    return topic, group, me, claim


def _message() -> NewMessage:
    return NewMessage(new_uid(), None, None, b"", encode_json("behind a hole"), producer_id="p")


def _run_the_rest(stream: Stream, topic: Topic, group: Group, lo: int, runs: list[int]) -> None:
    """Adopt what waits from ``lo`` on, and finish it."""
    adopted = claims.take_waiting(stream.session, stream.claimant(topic, group, stream.client()))
    assert adopted
    assert (adopted.lo, offsets(adopted)) == (lo, runs)
    progress.flush(stream.session, flush_of(adopted, topic, adopted.hi))


def test_two_recoveries_in_a_row_are_two_transactions(traced: Stream) -> None:
    topic, group = _filled(traced, 6)
    for _ in range(2):
        me = traced.client()
        traced.take(topic, group, me, batch=3)
        traced.expire(me)
    assert len(traced.recover()) == 2
    transactions, steps = _followed(traced, group)
    assert [len(one.of("ems_claim")) for one in transactions if one.what == "recover"] == [2, 2]
    assert steps["recover"] == 2


def test_a_recovery_and_what_follows_on_its_connection_are_two_transactions(traced: Stream) -> None:
    topic, group = _filled(traced, 3)
    me = traced.client()
    traced.take(topic, group, me)
    traced.expire(me)
    assert len(traced.recover()) == 1
    _run_the_rest(traced, topic, group, 1, [1, 2, 3])
    transactions, _ = _followed(traced, group)
    assert [one.what for one in transactions][-3:] == ["recover", "", ""]


def test_an_owner_dies_when_only_tombstones_are_left(traced: Stream) -> None:
    topic, group, me, _ = _all_run(traced)
    traced.expire(me)
    assert len(traced.recover()) == 1
    _run_the_rest(traced, topic, group, 4, [])
    _, steps = _followed(traced, group)
    assert steps["flush_open"] == steps["recover"] == steps["adopt"] == 1


def test_an_owner_gives_back_only_tombstones(traced: Stream) -> None:
    topic, group, _, claim = _all_run(traced)
    progress.give_back(traced.session, flush_of(claim, topic, 3, finished=True, was=3), 3)
    _run_the_rest(traced, topic, group, 4, [])
    _, steps = _followed(traced, group)
    assert steps["flush_open"] == steps["give_back"] == steps["adopt"] == 1


def test_an_owner_gives_back_retries_that_it_has_not_begun(traced: Stream) -> None:
    topic, group = _filled(traced, 3)
    me = traced.client()
    claim = traced.take(topic, group, me)
    progress.flush(traced.session, flush_of(claim, topic, 3, failures=[failed(1), failed(3)]))
    again = claims.take_retries(traced.session, traced.claimant(topic, group, me))
    assert again and offsets(again) == [1, 3]
    write = ClaimProgress(again, topic.id, 60.0).give_back((), 0.0)
    assert write is not None and write.last is None
    progress.flush(traced.session, write.flush)
    transactions, steps = _followed(traced, group)
    assert len(transactions[-1].of("ems_retry")) == 2
    assert steps["give_back"] == 1 and steps["take_retries"] == 1


def test_an_owner_finishes_what_was_written_down_before(traced: Stream) -> None:
    topic, group, _, claim = _all_run(traced)
    progress.flush(traced.session, flush_of(claim, topic, 5))
    _, steps = _followed(traced, group)
    assert (steps["flush_open"], steps["flush"]) == (1, 1)


@pytest.mark.parametrize("dies", [False, True])
def test_in_order_a_failure_is_written_down_before_the_rest_is_given_back(traced: Stream, dies: bool) -> None:
    topic, group = _filled(traced, 4, Ordering.PARTITION)
    me = traced.client()
    claim = ordered.take_next(traced.session, traced.claimant(topic, group, me), 0)
    assert isinstance(claim, Claim)
    progress.flush(traced.session, flush_of(claim, topic, 2, failures=[failed(2)]))
    if dies:
        traced.expire(me)
        assert len(traced.recover()) == 1
    else:
        progress.give_back(traced.session, flush_of(claim, topic, 2, finished=True, was=2), 2)
    _, steps = _followed(traced, group, Order.PARTITION)
    assert steps["recover" if dies else "give_back"] == 1
