"""What people do to a group by hand: moving, skipping, replaying, cancelling, second lives, retention, pausing."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from emsworker.core.model import Order
from emsworker.core.offsets import OffsetRange
from emsworker.core.work import AvailableWork
from emsworker.store import topics
from emsworker.store.groups import cancel, claims, cursors, dead, replay, skipping
from emsworker.store.inspect import monitoring, quality
from emsworker.store.stream import retention
from verification.property.machine import NEAR, RunningMachine


class StoreMachine(RunningMachine):
    """All of the operations."""

    @rule(to=NEAR)
    def reset(self, to: int) -> None:
        to = min(max(1, self.oracle.cursor + to), self.oracle.end)
        cursors.reset(self.session, self.group, 0, to, "test")
        self.oracle.reset(to)

    @rule(limit=st.integers(1, 3), age_wins=st.booleans())
    def retain(self, limit: int, age_wins: bool) -> None:
        """The log start offset is raised over what is done with, or over what is old as well, and what lies below is deleted."""
        self._keep(age_wins)
        kept = next(one for one in retention.list_kept(self.session) if one.topic_id == self.topic.id)
        passed: list[tuple[str, int]] = []
        planned = retention.plan_log_start(self.session, kept, limit)
        log_start = retention.raise_log_start(self.session, kept, limit, lambda *told: passed.append(told))
        overtaken = self.oracle.retain(limit, age_wins)
        assert planned == log_start == self.oracle.log_start
        assert passed == ([(self.group.name, overtaken)] if overtaken else [])
        trimmed = kept.trimmed
        while trimmed < log_start:
            trimmed = retention.delete_below(self.session, kept, log_start, log_start)
        places = retention.list_restored(self.session, self.topic.id)
        retention.delete_restored(self.session, self.topic.id, places)
        self.oracle.delete_below()

    def _keep(self, age_wins: bool) -> None:
        """Until all are done with it; or for no time at all, whoever has not claimed it yet."""
        settings = {
            "keep_done_s": None if age_wins else 0,
            "age_wins": age_wins,
            "retention_s": 0 if age_wins else None,
        }
        if self.topic.age_wins != age_wins:
            self.topic = replace(self.topic, **settings)  # type: ignore[arg-type]
            topics.change_topic(self.session, self.topic)

    @rule(offset=NEAR)
    def cancel(self, offset: int) -> None:
        offset = max(1, self.oracle.cursor + offset)
        rows = self.stream.rows(
            "SELECT uid FROM ems_message WHERE topic_id = %s AND `offset` = %s AND kind = 'message'",
            self.topic.id,
            offset,
        )
        if rows:
            finished = self.oracle.finished(offset)
            state = cancel.cancel(self.session, self.topic.id, rows[0][0])
            unfinished = (cancel.StateAtCancel.WAITING, cancel.StateAtCancel.RUNNING)
            assert state in ((cancel.StateAtCancel.FINISHED,) if finished else unfinished)
            if not finished:
                self.oracle.cancel(offset)

    @precondition(lambda self: self.oracle.dead)
    @rule(count=st.integers(1, 4))
    def requeue(self, count: int) -> None:
        chosen = sorted(self.oracle.dead)[:count]
        moved = dead.requeue(self.session, self.group, [(0, offset) for offset in chosen], lambda n: None)
        assert moved == len(self.oracle.requeue(chosen))

    @precondition(lambda self: self.oracle.dead)
    @rule(count=st.integers(1, 2))
    def delete_dead(self, count: int) -> None:
        chosen = sorted(self.oracle.dead)[-count:]
        assert dead.delete_dead(self.session, self.group, [(0, offset) for offset in chosen], lambda n: None) == len(
            chosen
        )
        self.oracle.dead -= set(chosen)

    @rule(most=st.integers(0, 6))
    def skip(self, most: int) -> None:
        """Of more unclaimed messages than so many the oldest are passed over."""
        policy = skipping.SkipPolicy(most_waiting=most)
        plan = skipping.plan_skips(self.session, self.group, policy)
        made = skipping.make_skips(self.session, self.group, plan, policy)
        assert sum(one.count for one in made) == self.oracle.skip(self.oracle.end - most)

    @rule(first=NEAR, length=st.integers(1, 6), chosen=st.sets(st.integers(0, 5)), singly=st.booleans())
    def replay(self, first: int, length: int, chosen: set[int], singly: bool) -> None:
        """Some messages of a range are run again, as ranges or one by one."""
        lo = max(1, self.oracle.cursor + first)
        offsets = OffsetRange(self.topic.id, 0, lo, lo + length)
        wanted = [o for o in range(offsets.start, offsets.end) if self.oracle.rows.get(o) == "message"]
        again = [offset for offset in wanted if offset - lo in chosen]
        singly = singly and self.group.order is Order.NONE  # one in order gets ranges
        part = replay.ReplayPart(offsets, again, None if singly else wanted)
        planned = replay.plan(self.session, self.group, part)
        done = replay.replay(self.session, self.group, part)
        assert done.again == self.oracle.replay(offsets.start, offsets.end - 1, set(again), singly)
        assert done.chosen == len(again) == done.again + done.live + done.unclaimed + self.oracle.below(again)
        assert planned.unclaimed == done.unclaimed

    @rule()
    def purge(self) -> None:
        """All that is not finished is cancelled."""
        told: list[int] = []
        planned = cancel.purge(self.session, self.topic, [self.group.id], told.append, dry_run=True)
        done = cancel.purge(self.session, self.topic, [self.group.id], told.append, dry_run=False)
        assert planned == done
        assert (done.messages, done.retries) == self.oracle.purge()

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.group = replace(self.group, paused=paused)
        topics.change_group(self.session, self.group)
        self.oracle.paused = paused

    @rule()
    def look(self) -> None:
        """What a worker that looks would find to do; nothing in a group that is paused."""
        found = claims.find_work(self.session, [self.group.id]).work.get(self.group.id, AvailableWork())
        assert (found.waiting, found.retries, found.partitions, found.holes) == self.oracle.work()

    @rule()
    def count(self) -> None:
        """What a person is told of the group."""
        lag = next(one for one in monitoring.list_lags(self.session) if one.group_id == self.group.id)
        assert (lag.unclaimed, lag.claimed + lag.waiting, lag.retries, lag.dead, lag.lowest) == self.oracle.lag()
        live = len(self.oracle.live) + len(self.oracle.waiting)
        assert topics.count_unfinished(self.session, self.group) == (live, len(self.oracle.retries))
        orphans = [one for one in quality.orphan_retries(self.session) if one.topic_id == self.topic.id]
        assert not orphans, "what is to run again is there"
        ownerless = [one.count for one in quality.ownerless_claims(self.session, 0) if one.topic_id == self.topic.id]
        gone = [claim for claim in self.oracle.live.values() if claim.client in self.oracle.gone]
        assert sum(ownerless) == len(gone), "they wait for recovery"
