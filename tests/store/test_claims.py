"""Claims: taking, recording, giving back."""

import dataclasses
import multiprocessing
import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest

from emsworker.core.codec import Decoder
from emsworker.core.errors import ConnectionLost, FenceLost
from emsworker.core.flush import Flush
from emsworker.core.limits import Limit
from emsworker.core.model import Claim, ClaimSource, Group, Isolation, Topic, TopicRule
from emsworker.core.work import AvailableWork, Claimant, NothingClaimed
from emsworker.store import topics
from emsworker.store.engine.database import Database
from emsworker.store.groups import claims, limits, progress
from tests.support import rows
from tests.support.streams import Stream, failed, flush_of, offsets


def filled(stream: Stream, count: int, name: str = "t") -> tuple[Topic, Group, str]:
    """A topic with messages 1..count, a group and a client."""
    app = stream.app()
    app.send_many(name, range(1, count + 1))
    topic = app.stream.catalog.topic(name)
    return topic, stream.group(topic), stream.client()


def _claim_everything(
    url: str, topic: Topic, group: Group, client_ids: list[str], seed: int
) -> list[tuple[int, int, int]]:
    """One of several processes: some threads claim until nothing is left; returns partition, lo, hi of each claim."""

    def one(client_id: str) -> list[tuple[int, int, int]]:
        rng = random.Random(f"{seed}{client_id}")
        taken, empty = [], 0
        with Database(url).session() as session:
            before: list[Flush] = []
            while empty < 6:
                claimant = Claimant(topic, group, client_id, rng.randint(1, 40), 1 << 20, Decoder())
                claim = claims.take_range(session, claimant, rng.randrange(topic.partitions), before, wait=True)
                before = []
                if not claim:
                    empty += 1
                    continue
                assert offsets(claim) == list(range(claim.lo, claim.hi + 1))
                taken.append((claim.partition, claim.lo, claim.hi))
                before = [flush_of(claim, topic, claim.hi)]
        return taken

    with ThreadPoolExecutor(len(client_ids)) as pool:
        return [claim for made in pool.map(one, client_ids) for claim in made]


def test_a_claim_that_is_returned_in_part_is_not_believed(stream: Stream) -> None:
    """What was not returned would look like tombstones, and be done without a run."""
    topic, group, client_id = filled(stream, 5)
    claimant = Claimant(topic, group, client_id, 10, 1 << 20, Decoder())
    stream.session.execute("SET sql_select_limit = 2")
    with pytest.raises(ConnectionLost, match="2 instead of 5"):
        claims.take_range(stream.session, claimant, 0, wait=True)


def test_20_threads_in_4_processes_never_claim_an_offset_twice(stream: Stream) -> None:
    topic = stream.topic("t", partitions=2)
    app = stream.app()
    for partition in (0, 1):
        app.send_many("t", range(1500), partition=partition)
    group = stream.group(topic)
    ids = [[stream.client() for _ in range(5)] for _ in range(4)]
    with ProcessPoolExecutor(4, multiprocessing.get_context("spawn")) as pool:
        working = [pool.submit(_claim_everything, stream.url, topic, group, ids[n], n) for n in range(4)]
        taken = [claim for future in working for claim in future.result(100)]
    for partition in (0, 1):
        claimed = [n for where, lo, hi in taken if where == partition for n in range(lo, hi + 1)]
        assert len(claimed) == len(set(claimed))
        assert sorted(claimed) == list(range(1, stream.cursor(group, partition)))
    assert stream.value("SELECT COUNT(*) FROM ems_claim") == len(taken)


def test_a_claim_keeps_to_its_rows_and_bytes(stream: Stream) -> None:
    app = stream.app()
    app.send_many("t", [b"x" * 100, b"x" * 100, b"x" * 100, b"x" * 1000, b"x"])
    topic = app.stream.catalog.topic("t")
    group, me = stream.group(topic), stream.client()

    def take(batch: int, batch_bytes: int) -> list[int]:
        claim = claims.take_range(stream.session, stream.claimant(topic, group, me, batch, batch_bytes), 0)
        return offsets(claim) if claim else []

    assert take(500, 400) == [1, 2], "their headers count, too"
    assert take(500, 400) == [3]
    assert take(500, 400) == [4], "one message always fits"
    assert take(1, 400) == [5]
    assert take(500, 400) == []


def test_groups_are_independent_and_may_begin_at_the_end(stream: Stream) -> None:
    topic, group, me = filled(stream, 5)
    late = topics.create_group(
        stream.session, topic, "late", timeout_s=1, ladder="1s", max_attempts=1, from_start=False
    )
    assert offsets(stream.take(topic, group, me)) == [1, 2, 3, 4, 5]
    assert not claims.take_range(stream.session, stream.claimant(topic, late, me), 0)
    stream.app().send("t", 6)
    assert offsets(stream.take(topic, late, me)) == [6]


def test_nobody_claims_without_a_lease(stream: Stream) -> None:
    topic, group, me = filled(stream, 5)
    claim = stream.take(topic, group, me, batch=2)
    progress.flush(stream.session, flush_of(claim, topic, 2, failures=[failed(1)]))
    rest = stream.take(topic, group, me, batch=1)
    progress.give_back(stream.session, flush_of(rest, topic, 2, finished=False), 2)
    assert claims.find_work(stream.session, [group.id]).work[group.id] == AvailableWork(True, True, (0,))
    gone = stream.client()
    stream.expire(gone)
    for nobody in ("never-registered", gone):
        claimant = stream.claimant(topic, group, nobody)
        assert not claims.take_range(stream.session, claimant, 0)
        assert not claims.take_waiting(stream.session, claimant)
        assert not claims.take_retries(stream.session, claimant)
    assert stream.cursor(group) == 4
    assert stream.retries(group) == [(1, 1, False, 0)]
    assert stream.recover() == []


def test_an_announced_message_is_claimed_as_soon_as_it_is_committed(stream: Stream) -> None:
    topic = stream.topic()
    claimant = stream.claimant(topic, stream.group(topic), stream.client())
    take = partial(claims.take_range, stream.session, claimant, 0)
    assert take(announced=True) is NothingClaimed.EMPTY, "there is nothing to wait for"
    stream.rows("BEGIN")
    stream.rows(
        "INSERT INTO ems_message (topic_id, `partition`, `offset`, uid, headers, body, size, born_at) "
        "VALUES (%s, 0, 1, UNHEX(REPEAT('01', 16)), '', '1', 1, NOW(6))",
        topic.id,
    )
    assert take() is NothingClaimed.EMPTY, "it does not wait"
    with ThreadPoolExecutor(1) as pool:
        claim = pool.submit(take, announced=True)
        with pytest.raises(TimeoutError):
            claim.result(0.3)
        assert stream.rows("SELECT next_offset FROM ems_cursor FOR UPDATE") == [(1,)], "it holds nothing meanwhile"
        stream.rows("COMMIT")
        found = claim.result(10)
    assert isinstance(found, Claim) and [message.body for message in found.messages] == [1]


def test_a_waiting_claim_is_not_adopted_before_its_time(stream: Stream) -> None:
    topic, group, me = filled(stream, 4)
    claim = stream.take(topic, group, me)
    progress.give_back(stream.session, flush_of(claim, topic, 2, finished=True), 2)
    rows.hold_back(stream.rows, 60)
    assert claims.find_work(stream.session, [group.id]).work == {}
    assert not claims.take_waiting(stream.session, stream.claimant(topic, group, me))
    rows.hold_back(stream.rows, 0)
    assert claims.find_work(stream.session, [group.id]).work == {group.id: AvailableWork(waiting=True)}
    adopted = claims.take_waiting(stream.session, stream.claimant(topic, group, me))
    assert adopted and (adopted.lo, adopted.hi) == (3, 4)


@pytest.mark.parametrize("stop", ["pause", "write-only", "limit"])
def test_nothing_is_taken_of_a_group_that_may_not_since_somebody_looked(stream: Stream, stop: str) -> None:
    topic, group, client_id = filled(stream, 5)
    assert claims.find_work(stream.session, [group.id]).open == {group.id}
    change: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "pause": (
            lambda: topics.change_group(stream.session, replace(group, paused=True)),
            lambda: topics.change_group(stream.session, group),
        ),
        "write-only": (
            lambda: topics.change_topic(stream.session, replace(topic, rule=TopicRule.WRITE)),
            lambda: topics.change_topic(stream.session, topic),
        ),
        "limit": (
            lambda: limits.set_limit(stream.session, group.id, Limit(max_running=1)),
            lambda: limits.set_limit(stream.session, group.id, Limit()),
        ),
    }
    close, reopen = change[stop]
    close()
    assert claims.take_range(stream.session, stream.claimant(topic, group, client_id), 0) is NothingClaimed.EMPTY
    assert claims.find_work(stream.session, [group.id]).open == set()
    permitted = replace(stream.claimant(topic, group, client_id), permitted=True)
    assert bool(claims.take_range(stream.session, permitted, 0)) is (stop == "limit")
    reopen()
    assert claims.find_work(stream.session, [group.id]).open == {group.id}
    assert bool(claims.take_range(stream.session, stream.claimant(topic, group, client_id), 0)) is (stop != "limit")


def test_new_messages_are_found_at_cursors_and_at_the_ends_of_broadcasts(stream: Stream) -> None:
    topic, group, client_id = filled(stream, 3)
    bus = stream.topic("bus", partitions=1)
    assert claims.find_new(stream.session, [], []) == claims.News({}, {})
    assert claims.find_new(stream.session, [group.id], [bus.id]) == claims.News({topic.id: [0]}, {(bus.id, 0): 1})
    assert len(offsets(stream.take(topic, group, client_id))) == 3
    stream.app().send("bus", 1)
    assert claims.find_new(stream.session, [group.id], [bus.id]) == claims.News({}, {(bus.id, 0): 2})
    assert claims.find_new(stream.session, [], [bus.id]).ends == {(bus.id, 0): 2}


def test_one_that_looks_seldom_finds_other_work_too(stream: Stream) -> None:
    topic, group, client_id = filled(stream, 3)

    def others() -> set[int]:
        assert claims.find_new(stream.session, [group.id], []).others == set(), "only if it is asked for"
        return claims.find_new(stream.session, [group.id], [], also_other=True).others

    assert others() == {topic.id}, "messages"
    stream.take(topic, group, client_id)
    assert others() == set()
    stream.rows("UPDATE ems_claim SET state = 'waiting'")
    assert others() == {topic.id}, "a waiting claim"
    assert claims.take_waiting(stream.session, stream.claimant(topic, group, client_id))
    assert others() == set()
    row = "(topic_id, `partition`, `offset`, uid, headers, body, born_at) VALUES (%s, 0, 9, UNHEX(REPEAT('09', 16)), '', '', NOW(6))"
    stream.rows(f"INSERT INTO ems_message {row}", topic.id)
    assert others() == {topic.id}, "rows behind a hole"
    stream.rows("DELETE FROM ems_message WHERE `offset` = 9")
    row = "(group_id, `partition`, `offset`, attempt, due_at) VALUES (%s, 0, 1, 1, NOW(6) + INTERVAL 1 HOUR)"
    stream.rows(f"INSERT INTO ems_retry {row}", group.id)
    assert others() == set()
    stream.rows("UPDATE ems_retry SET due_at = NOW(6)")
    assert others() == {topic.id}, "a retry that is due"


def test_find_work_tells_of_every_group_and_of_no_paused_one(stream: Stream) -> None:
    topic, first, me = filled(stream, 4)
    second, idle = stream.group(topic, "second"), stream.group(topic, "idle")
    for group in (first, second):
        claim = stream.take(topic, group, me)
        progress.flush(stream.session, flush_of(claim, topic, 2, failures=[failed(1)]))
        progress.give_back(stream.session, flush_of(claim, topic, 2, finished=True), 2)
    ids = [first.id, second.id, idle.id]
    assert claims.find_work(stream.session, ids).work == {
        first.id: AvailableWork(True, True),
        second.id: AvailableWork(True, True),
        idle.id: AvailableWork(partitions=(0,)),
    }
    topics.change_group(stream.session, dataclasses.replace(first, paused=True))
    topics.change_group(stream.session, dataclasses.replace(idle, paused=True))
    assert set(claims.find_work(stream.session, ids).work) == {second.id}


def test_a_zombie_finishes_nothing_and_keeps_nothing(stream: Stream) -> None:
    topic, group, me = filled(stream, 10)
    claim = stream.take(topic, group, me, batch=4)
    stream.expire(me)
    assert len(stream.recover()) == 1
    back = stream.client()
    so_far = flush_of(claim, topic, 4, failures=[failed(2), failed(3, dead="gone")])
    with pytest.raises(FenceLost):
        progress.flush(stream.session, so_far)
    for take in (claims.take_waiting, claims.take_retries):
        with pytest.raises(FenceLost):
            take(stream.session, stream.claimant(topic, group, back), [so_far])
    with pytest.raises(FenceLost):
        claims.take_range(stream.session, stream.claimant(topic, group, back), 0, [so_far])
    with pytest.raises(FenceLost):
        progress.give_back(stream.session, so_far, 2)
    assert stream.cursor(group) == 5, "the zombie's next claim is rolled back too"
    assert stream.claims(group) == [(1, 4, 0, "waiting", None, 1)]
    for table in ("ems_retry", "ems_dead", "ems_attempt"):
        assert stream.rows(f"SELECT * FROM {table}") == []
    adopted = claims.take_waiting(stream.session, stream.claimant(topic, group, back))
    assert adopted
    with pytest.raises(FenceLost):
        progress.flush(stream.session, so_far)
    progress.flush(stream.session, flush_of(adopted, topic, 4))


def test_a_handlers_statements_are_rolled_back_with_the_fence(stream: Stream) -> None:
    topic, group, me = filled(stream, 2)
    claim = stream.take(topic, group, me)
    stream.expire(me)
    stream.recover()
    with stream.session.lend() as connection:
        connection.query("INSERT INTO ems_leader VALUES ('effect', 'h', NOW(6))")
    with pytest.raises(FenceLost):
        progress.commit_with(stream.session, flush_of(claim, topic, 2))
    assert stream.rows("SELECT * FROM ems_leader") == []
    adopted = claims.take_waiting(stream.session, stream.claimant(topic, group, stream.client()))
    assert adopted
    with stream.session.lend() as connection:
        connection.query("INSERT INTO ems_leader VALUES ('effect', 'h', NOW(6))")
    progress.commit_with(stream.session, flush_of(adopted, topic, 2))
    assert len(stream.rows("SELECT * FROM ems_leader")) == 1


def test_an_acknowledged_claim_cannot_be_acknowledged_again(stream: Stream) -> None:
    topic, group, me = filled(stream, 2)
    claim = stream.take(topic, group, me)
    so_far = flush_of(claim, topic, 2, failures=[failed(1)])
    progress.flush(stream.session, so_far)
    with pytest.raises(FenceLost):
        progress.flush(stream.session, so_far)
    assert stream.retries(group) == [(1, 1, False, 0)]


def test_give_back_of_a_claim_that_was_not_started(stream: Stream) -> None:
    topic, group, me = filled(stream, 5)
    claim = stream.take(topic, group, me)
    progress.give_back(stream.session, flush_of(claim, topic, 0, finished=False), 0)
    assert stream.claims(group) == [(1, 5, 0, "waiting", None, 0)]
    adopted = claims.take_waiting(stream.session, stream.claimant(topic, group, stream.client()))
    assert adopted
    assert (offsets(adopted), adopted.isolation) == ([1, 2, 3, 4, 5], Isolation.NONE)
    assert {message.attempt for message in adopted.messages} == {1}


def test_give_back_of_what_was_not_started(stream: Stream) -> None:
    topic, group, me = filled(stream, 5)
    claim = stream.take(topic, group, me)
    progress.give_back(stream.session, flush_of(claim, topic, 2, finished=False), 3, Isolation.ALONE)
    assert stream.claims(group) == [(1, 3, 2, "start", me, 0), (4, 5, 3, "waiting", None, 2)]
    claim.hi = 3
    progress.flush(stream.session, flush_of(claim, topic, 3))
    adopted = claims.take_waiting(stream.session, stream.claimant(topic, group, me))
    assert adopted
    assert (offsets(adopted), adopted.isolation) == ([4], Isolation.ALONE)
    progress.give_back(stream.session, flush_of(adopted, topic, 4, finished=True), 4)
    assert [row[:4] for row in stream.claims(group)] == [(1, 3, 3, "done"), (4, 4, 4, "done"), (5, 5, 4, "waiting")]
    assert stream.rows("SELECT * FROM ems_attempt") == []


def with_retries(stream: Stream, count: int) -> tuple[Topic, Group, str]:
    """Messages 1..count, each failed once and due."""
    topic, group, me = filled(stream, count)
    claim = stream.take(topic, group, me)
    progress.flush(stream.session, flush_of(claim, topic, count, failures=[failed(n) for n in range(1, count + 1)]))
    stream.make_due()
    return topic, group, me


def test_retries_are_claimed_finished_and_given_back(stream: Stream) -> None:
    topic, group, me = with_retries(stream, 5)
    claim = claims.take_retries(stream.session, stream.claimant(topic, group, me))
    assert claim
    assert claim.source is ClaimSource.RETRY
    assert [(m.offset, m.attempt, m.body) for m in claim.messages] == [(n, 2, n) for n in range(1, 6)]
    assert not claims.take_retries(stream.session, stream.claimant(topic, group, me))
    so_far = flush_of(claim, topic, 2, done_offsets=[(1, 2, 7)], failures=[failed(2, attempt=2, retry_in_s=60.0)])
    progress.flush(stream.session, so_far)
    assert stream.retries(group) == [(2, 2, False, 0), (3, 1, True, 0), (4, 1, True, 0), (5, 1, True, 0)]
    progress.give_back(stream.session, flush_of(claim, topic, 3, finished=True, done_offsets=[(3, 2, 7)]), 3)
    assert stream.retries(group) == [(2, 2, False, 0), (4, 1, False, 0), (5, 1, False, 0)]
    assert [row[3] for row in stream.claims(group)] == ["done"], "a claim of retries leaves no row"
    again = claims.take_retries(stream.session, stream.claimant(topic, group, me, batch=1))
    assert again
    assert len(again.messages) == 1
    progress.give_back(stream.session, flush_of(again, topic, again.lo - 1, finished=True), again.lo - 1)
    assert [row[2] for row in stream.retries(group)] == [False] * 3
    outcomes = stream.rows("SELECT `offset`, attempt, outcome FROM ems_attempt WHERE attempt = 2 ORDER BY 1")
    assert outcomes == [(1, 2, "done"), (2, 2, "failed"), (3, 2, "done")]


def test_a_dead_letter_carries_its_own_body_and_the_last_error(stream: Stream) -> None:
    topic, group, me = with_retries(stream, 2)
    claim = claims.take_retries(stream.session, stream.claimant(topic, group, me))
    assert claim
    end = dataclasses.replace(failed(1, attempt=2, dead="used up"), error="x" * 9000 + "ValueError: the end \ud800")
    progress.flush(stream.session, flush_of(claim, topic, 2, failures=[end], done_offsets=[(2, 2, 7)]))
    stream.rows("DELETE FROM ems_message WHERE `offset` > 0")
    found = stream.rows("SELECT `offset`, body, attempts, reason, error, uid IS NULL FROM ems_dead")
    assert [row[:4] for row in found] == [(1, b"1", 2, "used up")]
    assert found[0][4].endswith("ValueError: the end \\ud800")
    assert found[0][5] == 0
    assert stream.retries(group) == []


def test_retries_of_one_group_do_not_touch_another(stream: Stream) -> None:
    topic, group, me = with_retries(stream, 3)
    other = stream.group(topic, "other")
    claim = stream.take(topic, other, me)
    progress.flush(stream.session, flush_of(claim, topic, 3))
    assert not claims.take_retries(stream.session, stream.claimant(topic, other, me))
    assert len(stream.retries(group)) == 3
    assert stream.retries(other) == []


def test_retries_that_are_not_due_wait(stream: Stream) -> None:
    topic, group, me = filled(stream, 1)
    claim = stream.take(topic, group, me)
    progress.flush(stream.session, flush_of(claim, topic, 1, failures=[failed(1, retry_in_s=30.5)]))
    assert not claims.take_retries(stream.session, stream.claimant(topic, group, me))
    look = claims.find_work(stream.session, [group.id])
    assert look.work == {} and look.due_s is not None and 20 < look.due_s <= 30.5
    due_in = stream.value("SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), due_at) / 1e6 FROM ems_retry")
    assert 20 < due_in <= 30.5
