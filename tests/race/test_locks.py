"""A second connection holds the lock; what becomes of the loser is asserted."""

import threading
from typing import Any

import pytest

from emsworker.beat.recovery import recover
from emsworker.core.errors import FenceLost
from emsworker.store.cluster import clients
from emsworker.store.groups import claims, progress
from emsworker.store.stream.messages import close_hole
from tests.support import rows
from tests.support.streams import Stream, failed, flush_of, in_threads
from tests.support.waiting import until


def claimed(stream: Stream) -> tuple[Any, Any, str, Any]:
    stream.app().send_many("t", range(6))
    topic = stream.topic("t")
    group, me = stream.group(topic), stream.client()
    return topic, group, me, stream.take(topic, group, me, batch=4)


def _end_when_waited_for(stream: Stream, waits: int, other: Any) -> None:
    """Roll back once somebody waits for a lock."""
    until(lambda: stream.lock_waits() > waits, 30, "somebody waits")
    other.rollback()


def test_a_held_cursor_is_skipped_or_waited_for(stream: Stream) -> None:
    topic, group, me, _ = claimed(stream)
    with stream.other() as other, other.cursor() as cursor:
        cursor.execute("SELECT * FROM ems_cursor FOR UPDATE")
        waits = stream.lock_waits()
        assert not claims.take_range(stream.session, stream.claimant(topic, group, me), 0)
        assert stream.lock_waits() == waits, "it waits for nobody"
        waiting = threading.Thread(target=_end_when_waited_for, args=(stream, waits, other))
        waiting.start()
        claim = claims.take_range(stream.session, stream.claimant(topic, group, me), 0, wait=True)
        waiting.join(60)
    assert claim
    assert (claim.lo, claim.hi) == (5, 6)


def test_a_claim_that_another_adopts_just_now_is_skipped(stream: Stream) -> None:
    topic, group, me, claim = claimed(stream)
    progress.give_back(stream.session, flush_of(claim, topic, 0, finished=False), 0)
    with stream.other() as other, other.cursor() as cursor:
        cursor.execute("SELECT * FROM ems_claim WHERE state = 'waiting' FOR UPDATE")
        assert not claims.take_waiting(stream.session, stream.claimant(topic, group, me))
        other.rollback()
    assert claims.take_waiting(stream.session, stream.claimant(topic, group, me))


def test_recovery_does_not_wait_for_an_owner_that_is_finishing(stream: Stream) -> None:
    topic, group, me, claim = claimed(stream)
    stream.expire(me)
    with stream.other() as other, other.cursor() as cursor:
        cursor.execute("UPDATE ems_claim SET acked_to = 4, state = 'done' WHERE group_id = %s", (group.id,))
        waits = stream.lock_waits()
        assert stream.recover() == []
        assert stream.lock_waits() == waits, "it waits for nobody"
        other.commit()
    assert stream.recover() == []
    assert stream.claims(group)[0][:4] == (1, 4, 4, "done")
    with pytest.raises(FenceLost):
        progress.flush(stream.session, flush_of(claim, topic, 4))


def test_an_owner_that_comes_after_recovery_loses_and_keeps_nothing(stream: Stream) -> None:
    topic, group, me, claim = claimed(stream)
    lost: list[Exception] = []

    def finish() -> None:
        with stream.new_session() as session:
            try:
                progress.flush(session, flush_of(claim, topic, 4))
            except FenceLost as error:
                lost.append(error)

    stream.expire(me)
    with stream.other() as other, other.cursor() as cursor:  # what recovery does, seen from the owner
        cursor.execute(
            "UPDATE ems_claim SET state = 'waiting', client_id = NULL, isolation = 2 WHERE group_id = %s", (group.id,)
        )
        owner = threading.Thread(target=finish)
        owner.start()
        owner.join(0.3)
        assert owner.is_alive(), "the owner waits for the row"
        other.commit()
        owner.join(20)
    assert len(lost) == 1
    assert stream.claims(group) == [(1, 4, 0, "waiting", None, 2)]


def test_two_recoveries_at_once_recover_each_claim_once(stream: Stream) -> None:
    stream.app().send_many("t", range(40))
    topic = stream.topic("t")
    group, me = stream.group(topic), stream.client()
    for _ in range(20):
        stream.take(topic, group, me, batch=2)
    stream.expire(me)

    def one(number: int) -> int:
        with stream.new_session() as session:
            return len(recover(session, 0.0, 0.0))

    assert sum(in_threads(3, one)) == 20
    assert sorted(row[:4] for row in stream.claims(group)) == [(n, n + 1, n - 1, "waiting") for n in range(1, 41, 2)]


def test_due_retries_are_shared_out_without_doubles(stream: Stream) -> None:
    topic, group, _, claim = claimed(stream)
    progress.flush(stream.session, flush_of(claim, topic, 4, failures=[failed(n) for n in range(1, 5)]))
    stream.make_due()
    ids = [stream.client() for _ in range(4)]

    def one(number: int) -> list[int]:
        with stream.new_session() as session:
            mine = claims.take_retries(session, stream.claimant(topic, group, ids[number], batch=1))
            return [message.offset for message in mine.messages] if mine else []

    taken = [offset for offsets in in_threads(4, one) for offset in offsets]
    assert len(taken) == len(set(taken))
    assert sum(row[2] for row in stream.retries(group)) == len(taken)


def test_one_of_several_leads(stream: Stream) -> None:
    def one(number: int) -> bool:
        with stream.new_session() as session:
            return clients.try_to_lead(session, "beat", f"h{number}", 30.0)

    led = in_threads(6, one)
    assert sum(led) == 1
    leader = f"h{led.index(True)}"
    assert clients.try_to_lead(stream.session, "beat", leader, 30.0)
    assert not clients.try_to_lead(stream.session, "beat", "another", 30.0)
    stream.rows("UPDATE ems_leader SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND")
    assert sum(in_threads(6, one)) == 1
    holder = clients.list_leaders(stream.session)[0].holder
    clients.resign(stream.session, "beat", "another")
    assert clients.list_leaders(stream.session)[0].holder == holder
    clients.resign(stream.session, "beat", holder)
    assert clients.try_to_lead(stream.session, "beat", "another", 30.0)


def test_a_tombstone_waits_for_a_producer_that_commits_just_now(stream: Stream) -> None:
    topic, group, me, _ = claimed(stream)
    stream.app().send("t", "next")
    rows.lose(stream.rows, 5)
    rows.set_cursor(stream.rows, 5)
    with stream.other() as other, other.cursor() as cursor:
        cursor.execute(
            "INSERT INTO ems_message (topic_id, `partition`, `offset`, uid, headers, body, born_at) "
            f"VALUES ({topic.id}, 0, 5, UNHEX(REPEAT('05', 16)), '', '\"late\"', NOW(6))"
        )
        threading.Timer(0.3, other.commit).start()
        assert close_hole(stream.session, topic.id, group.id, 0, 0.0)
    claim = stream.take(topic, group, me)
    assert [message.body for message in claim.messages] == ["late", 5, "next"]
