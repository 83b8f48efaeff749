"""Replaying into one group: exactly the chosen messages, each once, in order, and no other group notices."""

import random
import threading
from collections import Counter
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from emsworker import Filter
from emsworker.admin import Admin, Selection
from emsworker.admin.monitoring import Monitoring
from emsworker.core.errors import UnknownGroup
from emsworker.core.model import Claim, ClaimSource, Group, Order, Topic
from emsworker.core.offsets import OffsetRange
from emsworker.publish.outgoing import Outgoing
from emsworker.store.engine.sql import Statements
from emsworker.store.groups import claims, dead, ordered, progress
from emsworker.store.groups.replay import Replayed
from emsworker.store.stream import retention
from tests.store.test_flat_cost import SEQUENCE, reads
from tests.support import rows
from tests.support.streams import Stream, failed, flush_of, in_threads, offsets

COUNT = 40
START = datetime(2026, 3, 1, tzinfo=UTC)


def place(minutes: float) -> str:
    return (START + timedelta(minutes=minutes)).isoformat()


class Runner:
    """A client that runs all that its group has to offer, and remembers it."""

    def __init__(self, stream: Stream, topic: Topic, group: Group, batch: int = 7) -> None:
        self.stream, self.topic, self.group, self.batch = stream, topic, group, batch
        self.session = stream.new_session()
        self.client = stream.client()
        self.ran: list[tuple[int, int]] = []

    def take(self) -> Claim | None:
        """Whatever there is, the old first."""
        claimant = self.stream.claimant(self.topic, self.group, self.client, self.batch)
        found = claims.take_waiting(self.session, claimant) or claims.take_retries(self.session, claimant)
        return found or claims.take_range(self.session, claimant, 0, wait=True) or None

    def run_old(self) -> list[tuple[int, int]]:
        """All waiting claims and due retries: offset and attempt, in the order in which they came."""
        began = len(self.ran)
        for take in (claims.take_waiting, claims.take_retries):
            while claim := take(self.session, self.stream.claimant(self.topic, self.group, self.client, self.batch)):
                self.finish(claim)
        return self.ran[began:]

    def run_new(self, partition: int = 0) -> None:
        """All that is unclaimed."""
        claimant = self.stream.claimant
        while claim := claims.take_range(
            self.session, claimant(self.topic, self.group, self.client, self.batch), partition, wait=True
        ):
            self.finish(claim)

    def finish(self, claim: Claim, dying: Collection[int] = ()) -> None:
        """Run a claim to its end; some of its messages become dead letters."""
        self.ran += [(message.offset, message.attempt) for message in claim.messages]
        bad = [failed(m.offset, m.attempt, dead="bad") for m in claim.messages if m.offset in dying]
        good = [(m.offset, m.attempt, 7) for m in claim.messages if m.offset not in dying]
        done = good if claim.source is ClaimSource.RETRY else []
        progress.flush(
            self.session, flush_of(claim, self.topic, claim.hi, done_offsets=done, failures=bad, was=claim.acked_to)
        )


@pytest.fixture
def topic(stream: Stream) -> Topic:
    """40 messages, born a minute apart; key k<n % 4>, tag even or odd."""
    topic = stream.topic()
    sent = [Outgoing("t", {"n": n}, key=f"k{n % 4}", tag="odd" if n % 2 else "even") for n in range(1, COUNT + 1)]
    stream.app().send_many("t", sent)
    stream.rows("UPDATE ems_message SET born_at = %s + INTERVAL `offset` MINUTE", START.replace(tzinfo=None))
    return topic


@pytest.fixture
def runner(stream: Stream, topic: Topic) -> Runner:
    """Of a group that has run everything."""
    runner = Runner(stream, topic, stream.group(topic))
    runner.run_new()
    assert [offset for offset, _ in runner.ran] == list(range(1, COUNT + 1))
    return runner


def counts(found: list[Replayed]) -> tuple[int, int, int, int]:
    assert len(found) == 1
    return found[0].chosen, found[0].again, found[0].live, found[0].unclaimed


def once(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Each in its first attempt."""
    return [(number, 1) for number in numbers]


EVERY = range(1, COUNT + 1)
SELECTIONS = [
    (Selection(), list(EVERY)),
    (Selection(start="5", end="17"), list(range(5, 18))),
    (Selection(start="-3"), [38, 39, 40]),
    (Selection(start=place(10), end=place(20)), list(range(10, 20))),
    (Selection(keys=("k1",)), [n for n in EVERY if n % 4 == 1]),
    (Selection(tags=("odd",), start="30"), [n for n in EVERY if n % 2 and n >= 30]),
    (Selection(where="body.n >= 9 and body.n < 12 or key = 'k3'"), [n for n in EVERY if n in (9, 10) or n % 4 == 3]),
]


def test_exactly_the_chosen_ones_each_once_and_in_order(
    stream: Stream, topic: Topic, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Runner(stream, topic, stream.group(topic, "other"))
    other.run_new()
    untouched = stream.claims(other.group)
    monkeypatch.setattr("emsworker.admin.replay._RANGE_STEP", 16)
    monkeypatch.setattr("emsworker.admin.replay.STEP", 9)
    admin = Admin(stream.app())
    for selection, wanted in SELECTIONS:
        replay = admin.replay("t", "g", selection)
        before = stream.claims(runner.group), stream.retries(runner.group)
        planned = replay.plan()
        assert (stream.claims(runner.group), stream.retries(runner.group)) == before, "a plan changes nothing"
        seen: list[Replayed] = []
        assert replay.run(seen.append) == planned and counts(planned) == (len(wanted), len(wanted), 0, 0)
        assert sum(len(one.offsets) for one in seen) == replay.length
        assert counts(admin.replay("t", "g", selection).run()) == (len(wanted), 0, len(wanted), 0), "not doubled"
        assert runner.run_old() == once(wanted), selection
    assert stream.cursor(runner.group) == COUNT + 1 == stream.cursor(other.group)
    assert stream.claims(other.group) == untouched and other.run_old() == []


def test_what_is_live_or_unclaimed_is_not_doubled(stream: Stream, topic: Topic) -> None:
    group = stream.group(topic)
    me, admin = stream.client(), Admin(stream.app())
    first = stream.take(topic, group, me, 10)  # 1..10: 1..4 done, 3 waits for a retry, 5..10 run
    progress.flush(stream.session, flush_of(first, topic, 4, failures=[failed(3, retry_in_s=900.0)]))
    second = stream.take(topic, group, me, 10)  # 11..20: 11..15 done, 12 dead, 16..20 given back
    dying = failed(12, dead="no")
    progress.give_back(stream.session, flush_of(second, topic, 15, finished=True, failures=[dying]), 15)
    third = stream.take(topic, group, me, 5)  # 21..25 done
    progress.flush(stream.session, flush_of(third, topic, 25))
    again = [1, 2, 4, *range(11, 16), *range(21, 26)]
    assert counts(admin.replay("t", "g", Selection()).run()) == (40, len(again), 12, 15)
    assert stream.rows("SELECT COUNT(*) FROM ems_dead") == [(0,)]
    runner = Runner(stream, topic, group)
    assert runner.run_old() == once(sorted([*again, *range(16, 21)]))
    progress.flush(stream.session, flush_of(first, topic, 10))
    assert stream.retries(group) == [(3, 1, False, 0)]
    runner.run_new()
    assert Counter(offset for offset, _ in runner.ran) == Counter([*again, *range(16, 21), *range(26, 41)])


def test_a_retry_within_a_live_claim_hides_nothing_of_it(stream: Stream, topic: Topic) -> None:
    group = stream.group(topic, order=Order.KEY)
    claim = ordered.take_next(stream.session, stream.claimant(topic, group, stream.client(), 20), 0)
    assert claim and claim.hi == 20
    progress.flush(stream.session, flush_of(claim, topic, 3))
    rows.add_retry(stream.rows, group.id, 6, attempt=0)
    assert counts(Admin(stream.app()).replay("t", "g", Selection()).run()) == (40, 3, 17, 20)
    assert [row[:2] for row in stream.claims(group) if row[3] == "waiting"] == [(1, 3)]


def test_the_filter_of_the_group_is_kept(stream: Stream, topic: Topic) -> None:
    runner = Runner(stream, topic, stream.group(topic, filter=Filter(tags=["odd"])))
    runner.run_new()
    admin = Admin(stream.app())
    for selection, wanted in (
        (Selection(start="4", end="8"), [5, 7]),
        (Selection(where="body.n < 6"), [1, 3, 5]),
    ):
        assert counts(admin.replay("t", "g", selection).run())[1] == len(wanted)
        assert len(stream.rows("SELECT 1 FROM ems_claim WHERE state = 'waiting'")) <= 1, "what lies between is no bar"
        assert runner.run_old() == once(wanted)


def test_failing_again_climbs_a_fresh_ladder_and_dies_again(stream: Stream, topic: Topic, runner: Runner) -> None:
    admin = Admin(stream.app())
    for selection in (Selection(start="7", end="7"), Selection(where="offset = 7")):
        admin.replay("t", "g", selection).run()
        claim = runner.take()
        assert claim and [(m.offset, m.attempt) for m in claim.messages] == [(7, 1)]
        progress.flush(stream.session, flush_of(claim, topic, 7, failures=[failed(7, attempt=1, dead="gone")]))
        assert [row.offset for row in dead.list_dead(stream.session, runner.group.id, (0, -1), 9)] == [7]
        assert admin.messages.get("t/0/7")


def test_retention_keeps_what_is_to_be_replayed(stream: Stream, topic: Topic, runner: Runner) -> None:
    admin = Admin(stream.app())
    admin.change_topic("t", keep_done_s=0)
    admin.replay("t", "g", Selection(start="20", end="22")).run()
    admin.replay("t", "g", Selection(where="offset = 11")).run()
    kept = retention.list_kept(stream.session)[0]
    assert retention.raise_log_start(stream.session, kept, 1000) == 11
    assert runner.run_old() == once([20, 21, 22, 11])
    assert retention.raise_log_start(stream.session, kept, 1000) == COUNT + 1
    assert counts(
        admin.replay("t", "g", Selection(where="offset > 0")).run() or [Replayed(OffsetRange(1, 0, 1, 2))]
    ) == (0, 0, 0, 0)


def test_an_interrupted_replay_goes_on_where_it_stopped(
    stream: Stream, topic: Topic, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emsworker.admin.replay.STEP", 10)
    admin, told = Admin(stream.app()), []

    def stop(part: Replayed) -> None:
        told.append(part)
        if len(told) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        admin.replay("t", "g", Selection(tags=("odd",))).run(stop)
    first = runner.run_old()
    rest = admin.replay("t", "g", Selection(tags=("odd",)), after=told[-1].last)
    assert rest.length == 20 and counts(rest.run()) == (10, 10, 0, 0)
    assert first + runner.run_old() == once(range(1, 41, 2))


def test_beside_workers_and_requeues_nothing_is_lost_or_in_two_places(stream: Stream, topic: Topic) -> None:
    group = stream.group(topic)
    runner = Runner(stream, topic, group, batch=3)
    rng = random.Random(5)
    dying, enough = range(4, COUNT, 4), threading.Event()

    def work(number: int) -> int:
        again, admin = 0, Admin(stream.app())
        while number == 0 and len(runner.ran) < 5 * COUNT:
            if claim := runner.take():
                runner.finish(claim, dying)
        if number == 0:
            enough.set()
        while number and not enough.is_set():
            first = rng.randint(1, 30)
            if number == 1:
                again += admin.dead.requeue_all("t", "g")
            else:
                chosen = Selection(start=str(first), end=str(first + 9)) if number == 2 else Selection(keys=("k0",))
                again += sum(one.again for one in admin.replay("t", "g", chosen).run())
        return again

    again = sum(in_threads(4, work))
    while claim := runner.take():
        runner.finish(claim, dying)
    ran = Counter(offset for offset, _ in runner.ran)
    assert again > 10 and set(ran) == set(EVERY)
    assert sum(ran.values()) == COUNT + again, "each once, and once for each time that it was replayed or requeued"
    assert stream.rows("SELECT 1 FROM ems_claim WHERE state <> 'done'") == [] == stream.retries(group)
    assert {row[0] for row in stream.rows("SELECT `offset` FROM ems_dead")} == set(dying)


def test_the_trace_tells_of_the_last_claim(stream: Stream, topic: Topic, runner: Runner) -> None:
    admin, monitoring = Admin(stream.app()), Monitoring(stream.app())
    first = monitoring.trace_at("t", 0, 12).groups[0]
    admin.replay("t", "g", Selection(start="2", end="39")).run()
    assert (first.state, monitoring.trace_at("t", 0, 12).groups[0].state) == ("done", "waiting")
    again = Runner(stream, topic, runner.group, batch=100)
    again.run_old()
    last = monitoring.trace_at("t", 0, 12).groups[0]
    assert (first.client_id, last.client_id, last.state) == (runner.client, again.client, "done")


def test_a_deleted_group(stream: Stream, topic: Topic, runner: Runner) -> None:
    replay = Admin(stream.app()).replay("t", "g", Selection())
    Admin(stream.app()).delete_group("t", "g")
    with pytest.raises(UnknownGroup, match="'g'"):
        replay.run()


def test_the_look_for_what_is_live_is_bounded(stream: Stream, topic: Topic) -> None:
    group = stream.group(topic)
    now = "'stream', NOW(6), NOW(6), NOW(6)"
    columns = "group_id, `partition`, lo, claim_id, hi, acked_to, state, source, claimed_at, progress_at, deadline_at"
    stream.rows(
        f"INSERT INTO ems_claim ({columns}) SELECT {group.id}, 0, n * 10, n, n * 10 + 9, n * 10 - 1, 'waiting', {now} "
        f"FROM {SEQUENCE} WHERE n <= 2000"
    )
    args: dict[str, Any] = {"group_id": group.id, "partition": 0, "start": 15005, "end": 15035}
    statement = Statements("emsworker.store.groups.replay").list_taken
    found = stream.session.rows(statement, args)
    assert sorted(found) == [(15000, 15009), (15010, 15019), (15020, 15029), (15030, 15039)]
    assert reads(stream.session, lambda: stream.session.rows(statement, args)) < 60, "however much is waiting"


@pytest.mark.parametrize("order", [Order.PARTITION, Order.KEY])
def test_an_ordered_group_replays_in_the_order_of_offsets(stream: Stream, topic: Topic, order: Order) -> None:
    group, me = stream.group(topic, order=order), stream.client()

    def run(fail: int | None = None) -> list[int]:
        ran = []
        while claim := ordered.take_next(stream.session, stream.claimant(topic, group, me, 10), 0):
            assert claims.find_work(stream.session, [group.id]).work == {}, "one owner at a time"
            ran += offsets(claim)
            if fail is not None:
                failure = [failed(fail, retry_in_s=900.0)]
                progress.flush(stream.session, flush_of(claim, topic, claim.hi, failures=failure))
                return ran
            progress.flush(stream.session, flush_of(claim, topic, claim.hi))
        return ran

    assert run() == list(EVERY)
    admin = Admin(stream.app())
    admin.replay("t", "g", Selection(keys=("k1",))).run()
    admin.replay("t", "g", Selection(start="4", end="7")).run()
    assert stream.retries(group) == [], "a retry would be taken before what comes earlier"
    wanted = sorted({*[n for n in EVERY if n % 4 == 1], *range(4, 8)})
    assert run() == wanted
    admin.replay("t", "g", Selection(keys=("k1",))).run()
    assert run(fail=1) == [1]
    claim = ordered.take_next(stream.session, stream.claimant(topic, group, me), 0)
    if order is Order.PARTITION:
        assert not claim, "the failed one holds up the rest of the replay"
    else:
        assert claim and claim.blocked_keys == {b"k1"} and offsets(claim) == [5]
