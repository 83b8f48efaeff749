"""Hypothesis calls the store's operations in any order; the oracle says what each has to do, and the tables are recounted.

Here is what workers, producers and the beat do; what people do by hand is in :mod:`verification.property.byhand`.

One client does one thing at a time here: what happens at once is tried in tests/race and explored in verification/model.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from emsworker.beat import recovery
from emsworker.core.errors import AssertionBroken, Duplicate, FenceLost
from emsworker.core.flush import Flush
from emsworker.core.ids import new_claim_id, new_uid
from emsworker.core.model import Claim, ClaimSource, Failure, Message, NewMessage, Order, Outcome
from emsworker.core.work import Claimant, NothingClaimed
from emsworker.store.cluster import clients
from emsworker.store.groups import claims, detaching, ordered, progress
from emsworker.store.stream import messages
from tests.support.streams import LEASE_S, TIMEOUT_S, Stream, failed
from verification.property.oracle import ALONE, Oracle
from verification.property.recount import recount

CLIENTS = st.integers(0, 2)
BATCHES = st.sampled_from([1, 2, 5, 100])
OUTCOMES = st.lists(st.sampled_from(["ok", "ok", "ok", "now", "later", "dead", "ignored"]), max_size=6)
SOURCES = st.sampled_from(["any", "any", "range", "waiting", "retries"])
NEAR = st.integers(-8, 2)  # an offset, counted from the cursor
MAX_ATTEMPTS = 3
_ROWS = 40  # a partition stays small, so that operations meet


class RunningMachine(RuleBasedStateMachine):
    """One topic with one partition, one group, three clients.

    Args:
        stream: a migrated database.
        order: of the group.
    """

    def __init__(self, stream: Stream, order: Order) -> None:
        super().__init__()
        self.stream, self.session = stream, stream.session
        self.topic = stream.topic(f"t-{uuid.uuid4().hex}", keep_done_s=0)
        self.group = stream.group(self.topic, ladder="1h 1h", max_attempts=MAX_ATTEMPTS, order=order)
        self.oracle = Oracle(order, MAX_ATTEMPTS)
        self.clients = [self._client() for _ in range(3)]
        self.held: dict[int, Claim] = {}
        self.acked_to: dict[int, int] = {}
        self.blocked_keys: dict[int, set[bytes]] = {}

    def _client(self) -> str:
        client = self.stream.client()
        self.oracle.good[client] = True
        return client

    def _publish(self, keys: list[str], base: int | None) -> list[int]:
        made = [NewMessage(new_uid(), key.encode() or None, None, b"", b"x") for key in keys]
        batch = messages.PartitionBatch(self.topic.id, 0, made, messages.Placement(base))
        first = messages.publish(self.session, [batch])[0]
        for number, message in enumerate(made):
            self.oracle.rows[first + number] = "message"
            self.oracle.keys[first + number] = message.key
        return list(range(first, first + len(made)))

    @initialize(keys=st.lists(st.sampled_from(["", "a", "b"]), min_size=3, max_size=12))
    def begin(self, keys: list[str]) -> None:
        self._publish(keys, None)

    # -- the stream ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.oracle.end < _ROWS)
    @rule(keys=st.lists(st.sampled_from(["", "a", "b"]), min_size=1, max_size=5))
    def publish(self, keys: list[str]) -> None:
        end = self.oracle.end
        assert self._publish(keys, None)[0] >= end

    @precondition(lambda self: self.oracle.end < _ROWS)
    @rule(gap=st.integers(1, 3), key=st.sampled_from(["", "a"]))
    def publish_behind_a_hole(self, gap: int, key: str) -> None:
        self._publish([key], self.oracle.end + gap)

    @rule(offset=NEAR)
    def publish_late(self, offset: int) -> None:
        offset = max(1, self.oracle.cursor + offset)
        free = offset not in self.oracle.rows and offset >= self.oracle.log_start
        try:
            self._publish(["a"], offset)
        except (Duplicate, AssertionBroken):
            assert not free
        else:
            ahead = offset >= self.oracle.cursor or offset in self.oracle.skipped
            assert free and ahead, "a late producer never writes below a cursor, unless it was moved by hand"

    @rule()
    def close_hole(self) -> None:
        oracle = self.oracle
        behind = [offset for offset in oracle.rows if offset > oracle.cursor]
        way_free = oracle.cursor in oracle.rows or bool(behind)
        assert messages.close_hole(self.session, self.topic.id, self.group.id, 0, 0.0) == way_free
        if oracle.cursor not in oracle.rows and behind:
            oracle.rows |= dict.fromkeys(range(oracle.cursor, min(behind)), "tombstone")

    # -- taking --------------------------------------------------------------------------------------------------------

    @rule(who=CLIENTS, batch=BATCHES, what=SOURCES, outcomes=OUTCOMES)
    def take(self, who: int, batch: int, what: str, outcomes: list[str]) -> None:
        """With a claim in hand, its end travels in the same packet."""
        self._take_next(who, batch, self._source() if what == "any" else what, outcomes)

    def _source(self) -> str:
        """Where there is something to be had."""
        if self.oracle.waiting:
            return "waiting"
        due = any(row.due and row.claim_id is None for row in self.oracle.retries.values())
        return "retries" if due else "range"

    def _take_next(self, who: int, batch: int, what: str, outcomes: list[str]) -> None:
        before = None
        if who in self.held:
            before = self._progress(who, outcomes, 100)
            if not before.finished or (before.claim.order is Order.PARTITION and before.failures):
                return
        claimant = self.stream.claimant(self.topic, self.group, self.clients[who], batch)
        try:
            claim = self._take(claimant, what, [] if before is None else [before])
        except FenceLost:
            assert before is not None and not self.oracle.owns(before.claim)
            self._drop(who)
            return
        if before is not None:
            self._flushed(who, before)
        if isinstance(claim, NothingClaimed):
            self._missed(who, batch, what, claim)
            return
        self.oracle.took(claim, batch)
        self.held[who], self.acked_to[who], self.blocked_keys[who] = claim, claim.acked_to, set(claim.blocked_keys)

    def _take(self, claimant: Claimant, what: str, before: list[Flush]) -> Claim | NothingClaimed:
        if self.group.order is not Order.NONE:
            return ordered.take_next(self.session, claimant, 0, before)
        if what == "range":
            return claims.take_range(self.session, claimant, 0, before)
        take = claims.take_waiting if what == "waiting" else claims.take_retries
        return take(self.session, claimant, before)

    def _missed(self, who: int, batch: int, what: str, miss: NothingClaimed) -> None:
        oracle, may_take = self.oracle, self.oracle.may_take(self.clients[who])
        assert miss is NothingClaimed.EMPTY or what == "waiting" or self.group.order is not Order.NONE, (
            "nobody else is here"
        )
        if self.group.order is not Order.NONE:
            oracle.nothing_taken(self.clients[who], batch)
        elif what == "range":
            assert not may_take or oracle.next_range(batch) is None
        elif what == "waiting":
            assert not may_take or not oracle.waiting
        else:
            assert not may_take or not any(row.due and row.claim_id is None for row in oracle.retries.values())

    # -- running and writing down --------------------------------------------------------------------------------------

    def _progress(self, who: int, outcomes: list[str], count: int) -> Flush:
        """A client runs up to so many messages of its claim, and tells what became of them."""
        claim, done, over = self.held[who], self.acked_to[who], []
        failures = [Failure.gone(*one) for one in claim.gone] if done == claim.acked_to else []
        blocked: list[tuple[int, bytes | None]] = []
        left = [message for message in claim.messages if message.offset > done]
        for number, message in enumerate(left[:count]):
            if claim.order is Order.KEY and message.key_bytes in self.blocked_keys[who]:
                blocked.append((message.offset, message.key_bytes))
            else:
                outcome = outcomes[number] if number < len(outcomes) else "ok"
                failures += _failure(outcome, message.offset, message.attempt)
                over += [(message.offset, message.attempt, 7)] if outcome == "ok" else []
                if outcome in ("now", "later"):
                    self.blocked_keys[who] |= {message.key_bytes} - {None}  # type: ignore[arg-type]
                    if claim.order is Order.PARTITION:
                        return self._flush(who, message.offset, over, failures, blocked, message.offset >= claim.hi)
        whole = count >= len(left)
        done = claim.hi if whole else left[count - 1].offset if count else done
        return self._flush(who, done, over, failures, blocked, whole)

    def _flush(self, who: int, done: int, over: Any, failures: Any, blocked: Any, finished: bool) -> Flush:
        claim = self.held[who]
        over = over if claim.source is ClaimSource.RETRY else []
        running = (
            next((m.offset for m in claim.messages if m.offset > done), None) if claim.isolation >= ALONE else None
        )
        more = {"failures": failures, "done_offsets": over, "blocked": blocked, "finished": finished}
        return Flush(claim, self.topic.id, done, TIMEOUT_S, None if finished else running, **more)

    def _flushed(self, who: int, flush: Flush) -> None:
        self.oracle.flush(flush)
        self.acked_to[who] = flush.acked_to
        if flush.finished:
            self._drop(who)

    def _holder(self, number: int) -> int:
        """One of the clients that hold a claim, so that most steps do something."""
        return sorted(self.held)[number % len(self.held)]

    def _drop(self, who: int) -> None:
        for kept in (self.held, self.acked_to, self.blocked_keys):
            kept.pop(who, None)  # type: ignore[attr-defined]

    @precondition(lambda self: self.held)
    @rule(who=CLIENTS, outcomes=OUTCOMES, count=st.integers(0, 6), back=st.booleans())
    def flush(self, who: int, outcomes: list[str], count: int, back: bool) -> None:
        """Some of a claim is done; the rest may be given back in the same transaction."""
        self._write_down(self._holder(who), outcomes, count, back)

    def _write_down(self, who: int, outcomes: list[str], count: int, back: bool) -> None:
        claim, owner = self.held[who], self.oracle.owns(self.held[who])
        flush = self._progress(who, outcomes, count)
        again = any(failure.retry_in_s is not None for failure in flush.failures)
        back = not flush.finished and (back or (claim.order is Order.PARTITION and again))
        untouched = back and flush.acked_to < claim.lo and claim.source is ClaimSource.STREAM
        if back and not untouched:
            flush = Flush(**{**vars(flush), "finished": True, "running": None})
        try:
            if back:
                progress.give_back(self.session, flush, flush.acked_to)
            else:
                progress.flush(self.session, flush)
        except FenceLost:
            assert not owner
            self._drop(who)
            return
        assert owner, "only the owner writes anything"
        if untouched:
            del self.oracle.live[claim.claim_id]
            self.oracle._wait(claim.lo, claim.hi, claim.isolation)
            self._drop(who)
        else:
            if back:
                self.oracle.give_back(claim, flush.acked_to)
            self._flushed(who, flush)

    @rule(who=CLIENTS, batch=BATCHES, outcomes=OUTCOMES, count=st.integers(0, 6), back=st.booleans())
    def work(self, who: int, batch: int, outcomes: list[str], count: int, back: bool) -> None:
        """A client takes what there is, and begins with it."""
        if who not in self.held:
            self._take_next(who, batch, self._source(), [])
        if who in self.held:
            self._write_down(who, outcomes, count, back)

    @precondition(lambda self: self.group.order is Order.KEY and self.held)
    @rule(who=CLIENTS, done=st.integers(0, 3), running=st.integers(1, 2))
    def detach(self, who: int, done: int, running: int) -> None:
        """Some messages of a claim run long: they go on beside the stream, and the partition is free for other keys."""
        who = self._holder(who)
        claim = self.held[who]
        if claim.source is not ClaimSource.STREAM or claim.isolation or self.acked_to[who] >= claim.lo:
            return
        slow, free = self._split(who, done, running)
        if not slow:
            return
        top = slow[-1].offset
        blocked = [(m.offset, m.key_bytes) for m in free if m.offset < top]
        spans = {"lo": slow[0].offset, "hi": top, "acked_to": slow[0].offset - 1, "claim_id": new_claim_id()}
        kept = {"source": ClaimSource.RETRY, "messages": slow, "keys": {m.offset: m.key_bytes for m in slow}}
        rest = replace(claim, **spans, **kept)  # type: ignore[arg-type]
        flush = Flush(claim, self.topic.id, top, TIMEOUT_S, blocked=blocked, finished=True)
        try:
            detaching.detach(self.session, flush, rest)
        except FenceLost:
            assert not self.oracle.owns(claim)
            self._drop(who)
            return
        assert self.oracle.owns(claim), "only the owner writes anything"
        self.oracle.detach(flush, rest)
        self._drop(who)
        self.held[who], self.acked_to[who], self.blocked_keys[who] = rest, rest.acked_to, set()

    def _split(self, who: int, done: int, running: int) -> tuple[list[Message], list[Message]]:
        """Which messages of a claim run long, one of each key, and which would have to wait behind them."""
        slow: list[Message] = []
        free: list[Message] = []
        held_up = set(self.blocked_keys[who])
        for message in self.held[who].messages[done:]:
            if len(slow) == running:
                break
            (free if message.key_bytes in held_up else slow).append(message)
            held_up |= {message.key_bytes} - {None}  # type: ignore[arg-type]
        return slow, free

    # -- clients, recovery, time ---------------------------------------------------------------------------------------

    @rule(who=CLIENTS)
    def expire(self, who: int) -> None:
        """A lease runs out; its client does not know, and goes on with what it holds."""
        who = self._holder(who) if self.held else who
        self.stream.expire(self.clients[who])
        self.oracle.good[self.clients[who]] = False

    @rule(who=CLIENTS)
    def renew(self, who: int) -> None:
        """What has run out is never good again."""
        client = self.clients[who]
        assert clients.renew(self.session, [client], LEASE_S) == self.oracle.good[client]

    @rule(who=CLIENTS)
    def sign_off(self, who: int) -> None:
        """A client is no more; what it still holds is an orphan, though it may go on with it for a moment."""
        clients.deregister(self.session, [self.clients[who]])
        self.oracle.good[self.clients[who]] = False
        self.oracle.gone.add(self.clients[who])

    @rule()
    def sweep_clients(self) -> None:
        clients.delete_expired(self.session)
        rows = {row.client_id for row in clients.list_clients(self.session)}
        assert rows & set(self.oracle.good) == self.oracle.sweep_clients()

    @rule(who=CLIENTS)
    def replace_client(self, who: int) -> None:
        if not self.oracle.good[self.clients[who]]:
            self._drop(who)
            self.clients[who] = self._client()

    @precondition(lambda self: self.held)
    @rule(who=CLIENTS)
    def hang(self, who: int) -> None:
        """The running message of a living client is past its deadline."""
        claim = self.held[self._holder(who)]
        if self.oracle.owns(claim):
            self.stream.rows(
                "UPDATE ems_claim SET deadline_at = NOW(6) - INTERVAL 1 DAY WHERE group_id = %s AND claim_id = %s",
                *(self.group.id, claim.claim_id),
            )
            self.oracle.live[claim.claim_id].hung = True

    @rule()
    def recover(self) -> None:
        recovery.recover(self.session, 0.0, 0.0)
        self.oracle.recover()

    @rule()
    def time_passes(self) -> None:
        """Every retry that has a time is due."""
        statement = (
            "UPDATE ems_retry SET due_at = NOW(6) - INTERVAL 1 SECOND WHERE group_id = %s AND due_at < '9999-01-01'"
        )
        self.stream.rows(statement, self.group.id)
        for row in self.oracle.retries.values():
            row.due = not row.blocked

    # -- what always holds ---------------------------------------------------------------------------------------------

    @invariant()
    def the_tables_are_as_they_should_be(self) -> None:
        recount(self.session, self.topic, self.group).check(self.oracle)


def _failure(outcome: str, offset: int, attempt: int) -> list[Failure]:
    if outcome == "ok":
        return []
    if outcome == "ignored":
        return [replace(failed(offset, attempt, None), outcome=Outcome.IGNORED)]
    if outcome == "dead" or attempt >= MAX_ATTEMPTS:
        return [failed(offset, attempt, dead="no")]
    return [failed(offset, attempt, 0.0 if outcome == "now" else 3600.0)]
