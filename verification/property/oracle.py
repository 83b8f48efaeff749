"""What one partition of one group should look like, kept in plain Python beside the tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from emsworker.core.flush import Flush
from emsworker.core.model import Claim, ClaimSource, Order

ALONE, LAST = 2, 5


@dataclass
class Live:
    """A claim that somebody works on, or that waits (no client)."""

    lo: int
    hi: int
    acked_to: int
    client: str | None
    isolation: int
    of_retries: bool = False
    running: int | None = None
    hung: bool = False
    detached: bool = False

    @property
    def left(self) -> range:
        """The offsets that are here and nowhere else."""
        return range(0) if self.of_retries else range(self.acked_to + 1, self.hi + 1)


@dataclass
class Retry:
    """A message that is to run again."""

    attempt: int
    claim_id: int | None = None
    isolation: int = 0
    due: bool = True
    blocked: bool = False


@dataclass
class Oracle:
    """The expected state; each method does what a transaction of the store should do."""

    order: Order
    max_attempts: int
    keys: dict[int, bytes | None] = field(default_factory=dict)
    rows: dict[int, str] = field(default_factory=dict)
    cursor: int = 1
    log_start: int = 1
    live: dict[int, Live] = field(default_factory=dict)
    waiting: list[Live] = field(default_factory=list)
    retries: dict[int, Retry] = field(default_factory=dict)
    dead: set[int] = field(default_factory=set)
    restored: set[int] = field(default_factory=set)
    skipped: set[int] = field(default_factory=set)
    passed_over: int = 0
    paused: bool = False
    good: dict[str, bool] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """One past the last row; what is kept below the log start offset for a second life is none of the stream any more."""
        return max([*self.rows, self.log_start - 1]) + 1

    def places(self) -> dict[int, str]:
        """Where each offset below the cursor is."""
        found = dict.fromkeys(range(1, self.cursor), "over")
        found |= dict.fromkeys(self.dead, "dead") | dict.fromkeys(self.retries, "retry")
        for claim in [*self.live.values(), *self.waiting]:
            found |= dict.fromkeys(claim.left, "claim")
        return found

    def next_range(self, batch: int) -> tuple[int, int] | None:
        """The longest run from the cursor on."""
        hi = self.cursor
        while hi in self.rows and hi < self.cursor + batch:
            hi += 1
        return (self.cursor, hi - 1) if hi > self.cursor else None

    def needed(self, age_wins: bool) -> float:
        """The lowest offset that the group still needs; where age wins, what it has not claimed is none of it."""
        claims = [claim.acked_to + 1 for claim in [*self.live.values(), *self.waiting] if not claim.of_retries]
        return min([math.inf if age_wins else self.cursor, *claims, *self.retries])

    def lag(self) -> tuple[int, int, int, int, int | None]:
        """How many offsets are not claimed, claimed, to run again and dead; and the lowest of those yet to be run."""
        claimed = [offset for claim in [*self.live.values(), *self.waiting] for offset in claim.left]
        unclaimed = range(self.cursor, self.end)
        lowest = min([*claimed, *self.retries, *unclaimed], default=None)
        return len(unclaimed), len(claimed), len(self.retries), len(self.dead), lowest

    @property
    def busy(self) -> bool:
        """Whether somebody is at work; what was detached does not count."""
        return any(not claim.detached for claim in self.live.values())

    def work(self) -> tuple[bool, bool, tuple[int, ...], tuple[int, ...]]:
        """What a worker that looks should find: waiting claims, due retries, the partition, or a hole in it."""
        if self.paused or (self.order is not Order.NONE and self.busy):
            return False, False, (), ()
        due = [o for o, row in self.retries.items() if row.due and row.claim_id is None]
        at_cursor, behind = self.cursor in self.rows, any(offset > self.cursor for offset in self.rows)
        new = ((0,) if at_cursor else (), (0,) if behind and not at_cursor else ())
        if self.order is Order.NONE:
            return bool(self.waiting), bool(due), *new
        if self.order is Order.PARTITION and self.retries:
            return False, False, (0,) if min(self.retries) in due else (), ()
        return (False, False, (0,), ()) if due or self.waiting else (False, False, *new)

    def owns(self, claim: Claim) -> bool:
        """The fence."""
        mine = self.live.get(claim.claim_id)
        return mine is not None and mine.client == claim.client_id

    def finished(self, offset: int) -> bool:
        """Whether nobody has to run a message any more."""
        return offset < self.cursor and self.places()[offset] in ("over", "dead")

    # -- taking --------------------------------------------------------------------------------------------------------

    def may_take(self, client: str) -> bool:
        """Whether a client can take anything at all."""
        return self.good[client] and not self.paused

    def took(self, claim: Claim, batch: int) -> None:
        """A client says that it has got a claim: was it to be had?"""
        assert self.may_take(claim.client_id), "nobody takes anything without a lease, or in a paused group"
        if self.order is not Order.NONE:
            assert not self.busy, "a partition in order has one owner"
        if claim.source is ClaimSource.RETRY:
            self._took_retries(claim, batch)
            return
        if claim.lo == self.cursor:
            assert (claim.lo, claim.hi) == self.next_range(batch)
            assert self.order is Order.NONE or not self.waiting, "what was given back comes first"
            self.cursor = claim.hi + 1
            isolation = 0
        else:
            isolation = self._adopt(claim, batch)
        expected = [o for o in range(claim.lo, claim.hi + 1) if self.rows.get(o) == "message"]
        assert [message.offset for message in claim.messages] == expected
        assert claim.isolation == isolation
        if self.order is Order.KEY:
            waiting = {self.keys[offset] for offset in self.retries} - {None}
            assert claim.blocked_keys == waiting & {message.key_bytes for message in claim.messages}
        self.live[claim.claim_id] = Live(claim.lo, claim.hi, claim.lo - 1, claim.client_id, isolation)

    def _adopt(self, claim: Claim, batch: int) -> int:
        if self.order is Order.PARTITION:
            assert not self.retries, "what is to run again comes first"
        old = next(waiting for waiting in self.waiting if waiting.lo == claim.lo)
        if self.order is not Order.NONE:
            assert old.lo == min(waiting.lo for waiting in self.waiting)
        size = {0: batch, 1: min(batch, 32)}.get(old.isolation, 1)
        assert claim.hi == min(old.hi, old.lo + size - 1)
        self.waiting.remove(old)
        self._wait(claim.hi + 1, old.hi, old.isolation)
        return old.isolation

    def _took_retries(self, claim: Claim, batch: int) -> None:
        taken = sorted([m.offset for m in claim.messages] + [offset for offset, _ in claim.gone])
        rows = [self.retries[offset] for offset in taken]
        assert all(row.claim_id is None and row.isolation == rows[0].isolation for row in rows)
        assert any(row.due for row in rows) and (len(rows) == 1 or rows[0].isolation == 0)
        if self.order is not Order.KEY:
            assert len(rows) <= batch and all(row.due for row in rows)
        if self.order is Order.PARTITION:
            assert taken == [min(self.retries)]
        for row in rows:
            row.claim_id = claim.claim_id
        self.live[claim.claim_id] = Live(taken[0], taken[-1], taken[0] - 1, claim.client_id, rows[0].isolation, True)

    def nothing_taken(self, client: str, batch: int) -> None:
        """A client that may take was told that there is nothing: is that so?"""
        if not self.may_take(client) or (self.order is not Order.NONE and self.busy):
            return
        due = [o for o, row in self.retries.items() if row.due and row.claim_id is None]
        assert not due or (self.order is Order.PARTITION and min(self.retries) not in due), "a retry was due"
        if self.order is Order.PARTITION and self.retries:
            return
        assert not self.waiting and not self.next_range(batch)

    # -- writing down --------------------------------------------------------------------------------------------------

    def flush(self, progress: Flush) -> None:
        """Progress of an owner."""
        mine = self.live[progress.claim.claim_id]
        mine.acked_to = progress.acked_to if not mine.of_retries or not progress.finished else mine.acked_to
        mine.running, mine.hung = progress.running, False
        over = [offset for offset, *_ in progress.done_offsets]
        for failure in progress.failures:
            self._fail(failure.offset, failure.attempt, failure.retry_in_s)
            if failure.dead is not None and self.rows.get(failure.offset) == "message":
                self.dead.add(failure.offset)
            over += [failure.offset] if failure.retry_in_s is None else []
        for offset in over:
            self.retries.pop(offset, None)
        for offset, key in progress.blocked:
            row = self.retries.setdefault(offset, Retry(0, None, 0, key is None, key is not None))
            row.claim_id = None
        self._promote([*over, *(offset for offset, _ in progress.blocked)] if self.order is Order.KEY else [])
        if progress.finished:
            del self.live[progress.claim.claim_id]

    def _fail(self, offset: int, attempt: int, retry_in_s: float | None, isolation: int = 0) -> None:
        if retry_in_s is not None:
            old = self.retries.get(offset)
            self.retries[offset] = Retry(attempt, None, max(isolation, old.isolation if old else 0), retry_in_s == 0)

    def _promote(self, offsets: Iterable[int]) -> None:
        for key in {self.keys[o] for o in offsets} - {None}:
            same = [o for o in sorted(self.retries) if self.keys[o] == key]
            if same and self.retries[same[0]].blocked:
                self.retries[same[0]] = replace(self.retries[same[0]], due=True, blocked=False)

    def give_back(self, claim: Claim, last: int) -> None:
        """The owner keeps its claim up to ``last`` only; called before the flush that goes with it."""
        mine = self.live[claim.claim_id]
        if mine.of_retries:
            for offset, row in self.retries.items():
                if row.claim_id == claim.claim_id and offset > last:
                    row.claim_id = None
        else:
            self._wait(last + 1, mine.hi, mine.isolation)
        mine.hi = last

    def detach(self, progress: Flush, rest: Claim) -> None:
        """The owner ends its claim where it is, but for what runs; that is a claim of retries now."""
        self.give_back(progress.claim, progress.acked_to)
        for message in rest.messages:
            self.retries[message.offset] = Retry(0, rest.claim_id)
        self.flush(progress)
        self.live[rest.claim_id] = Live(rest.lo, rest.hi, rest.acked_to, rest.client_id, 0, True, detached=True)

    def _wait(self, lo: int, hi: int, isolation: int) -> None:
        if lo <= hi:
            self.waiting.append(Live(lo, hi, lo - 1, None, isolation))

    def sweep_clients(self) -> set[str]:
        """Whose lease is over is forgotten, unless he left something behind; who is known then?"""
        holders = {claim.client for claim in self.live.values()}
        self.gone |= {client for client, good in self.good.items() if not good and client not in holders}
        return set(self.good) - self.gone

    # -- recovery ------------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Every claim whose owner is gone or hangs."""
        for claim_id, claim in list(self.live.items()):
            assert claim.client is not None
            orphaned = not self.good[claim.client]
            if not orphaned and not claim.hung:
                continue
            del self.live[claim_id]
            named = claim.running is not None and claim.running > claim.acked_to
            blamed = not orphaned or (named and (claim.client in self.gone or claim.isolation == LAST))
            if claim.of_retries:
                self._recover_retries(claim_id, claim, blamed, orphaned)
            else:
                self._recover_range(claim, blamed, orphaned)

    def _recover_range(self, claim: Live, blamed: bool, orphaned: bool) -> None:
        lo, isolation = claim.acked_to + 1, claim.isolation if blamed else min(claim.isolation + 1, LAST)
        suspect = next((o for o in claim.left if self.rows.get(o) == "message"), None)
        if blamed and suspect is not None:
            self._charge(suspect, 1, max(claim.isolation, ALONE) if orphaned else 0)
            lo = suspect + 1
        self._wait(lo, claim.hi, isolation)

    def _recover_retries(self, claim_id: int, claim: Live, blamed: bool, orphaned: bool) -> None:
        mine = sorted(o for o, row in self.retries.items() if row.claim_id == claim_id)
        if blamed and mine:
            self._charge(mine[0], self.retries[mine[0]].attempt + 1, max(claim.isolation, ALONE) if orphaned else 0)
            mine = mine[1:]
        isolation = max(claim.isolation if blamed else min(claim.isolation + 1, LAST), ALONE)
        for offset in mine:
            self.retries[offset].claim_id, self.retries[offset].isolation = None, isolation

    def _charge(self, offset: int, attempt: int, isolation: int) -> None:
        if attempt < self.max_attempts:
            self._fail(offset, attempt, 3600.0, isolation)
            return
        self.retries.pop(offset, None)
        if self.rows.get(offset) == "message":
            self.dead.add(offset)
        self._promote([offset] if self.order is Order.KEY else [])

    # -- moving, cancelling, second lives, retention -------------------------------------------------------------------

    def reset(self, to: int) -> None:
        """The cursor is moved by hand."""
        to = max(to, self.log_start)
        if to < self.cursor:
            self._take_back(to)
        self.skip(to)
        self.cursor = to

    def skip(self, to: int) -> int:
        """The cursor passes over what lies before an offset; returns how many those are."""
        over = range(self.cursor, to)
        self.skipped |= set(over)
        self.passed_over += len(over)
        self.cursor += len(over)
        return len(over)

    def replay(self, lo: int, hi: int, chosen: set[int], singly: bool) -> int:
        """What of a window is over is run again; returns how many messages that are."""
        places, again, first = self.places(), 0, 0
        for offset in range(lo, hi + 2):
            place = places.get(offset)
            live, wanted = place in ("claim", "retry"), self.rows.get(offset) == "message" and offset <= hi
            if offset in chosen and offset >= self.log_start and place in ("over", "dead"):
                again, first, last = again + 1, first or offset, offset
                self.dead.discard(offset)
                if singly:
                    self.retries[offset] = Retry(0)
            if first and (offset > hi or live or (wanted and last != offset)):
                self._wait(first, last, 0) if not singly else None
                first = 0
        return again

    def below(self, offsets: Sequence[int]) -> int:
        """How many of these are below the log start offset."""
        return sum(offset < self.log_start for offset in offsets)

    def purge(self) -> tuple[int, int]:
        """Whatever is not finished is cancelled; returns how many messages, and retries that nobody runs."""
        claimed = [claim.acked_to + 1 for claim in [*self.live.values(), *self.waiting] if not claim.of_retries]
        gone = [o for o in self.rows if o >= min([self.cursor, *claimed]) and self.rows[o] == "message"]
        self.rows |= dict.fromkeys(gone, "cancelled")
        unclaimed = [offset for offset, row in self.retries.items() if row.claim_id is None]
        for offset in unclaimed:
            del self.retries[offset]
            self.rows |= {offset: "cancelled"} if self.rows.get(offset) == "message" else {}
        return len(gone), len(unclaimed)

    def _take_back(self, to: int) -> None:
        for claim_id, claim in list(self.live.items()):
            behind = [o for o, row in self.retries.items() if row.claim_id == claim_id and o >= to]
            if behind if claim.of_retries else claim.hi >= to:
                del self.live[claim_id]
                self._wait(claim.acked_to + 1, to - 1, claim.isolation) if not claim.of_retries else None
        for claim in [one for one in self.waiting if one.hi >= to]:
            self.waiting.remove(claim)
            self._wait(claim.lo, to - 1, claim.isolation)
        self.retries = {o: row for o, row in self.retries.items() if o < to}
        for row in self.retries.values():
            row.claim_id = row.claim_id if row.claim_id in self.live else None
        self.dead = {o for o in self.dead if o < to or self.rows.get(o) != "message"}

    def cancel(self, offset: int) -> None:
        """A message that was not run yet never is."""
        self.rows[offset] = "cancelled"
        row = self.retries.get(offset)
        if row and row.claim_id is None:
            del self.retries[offset]
            self._promote([offset] if self.order is Order.KEY else [])

    def requeue(self, offsets: Sequence[int]) -> list[int]:
        """Dead letters get a second life; those whose message was cancelled since do not."""
        moved = [o for o in offsets if o in self.dead and self.rows.get(o) in (None, "message")]
        for offset in moved:
            self.dead.remove(offset)
            self.rows[offset] = "message"
            self.retries[offset] = Retry(0)
            if offset < self.log_start:
                self.restored.add(offset)
        return moved

    def retain(self, limit: int, age_wins: bool) -> int:
        """The log start offset rises over so many rows; where age wins it takes the cursor along: over how many offsets?"""
        old = sorted(offset for offset in self.rows if offset >= self.log_start)[:limit]
        if old:
            self.log_start = max(self.log_start, int(min(old[-1] + 1, self.needed(age_wins))))
        return self.skip(self.log_start)

    def delete_below(self) -> None:
        """Rows below the log start offset go, but for second lives that have not ended."""
        self.restored = {o for o in self.restored if o in self.retries}
        self.rows = {o: kind for o, kind in self.rows.items() if o >= self.log_start or o in self.restored}
