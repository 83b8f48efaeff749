"""The progress of a claim against a simple model: random ends, writes whose answers are lost, and interruptions.

The model is a table of the messages of one claim, to which a write is applied as the store does it: the fence, the
acked offset, and what is recorded one by one. Whatever happens, each message ends in exactly one place, and nothing is
recorded twice.
"""

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from emsworker.consume.claim_progress import ClaimProgress, ClaimWrite, Ended
from emsworker.core.codec import Decoder
from emsworker.core.model import Claim, ClaimSource, Failure, Isolation, Message, Order, Outcome
from emsworker.core.run import ProgressReport
from emsworker.store.groups.progress import Flush

LO, HI = 11, 24


class Fenced(Exception):
    """The store refuses a write that was made before another one."""


@dataclass
class Row:
    """A claim as the store keeps it."""

    claim_id: int
    lo: int
    hi: int
    acked_to: int
    source: ClaimSource
    retries: set[int] = field(default_factory=set)


class Store:
    """What becomes of the messages of one claim."""

    def __init__(self, claim: Claim) -> None:
        self.offsets = {message.offset for message in claim.messages}
        retries = set(self.offsets) if claim.source is ClaimSource.RETRY else set()
        self.row: Row | None = Row(claim.claim_id, claim.lo, claim.hi, claim.acked_to, claim.source, retries)
        self.given_back: set[int] = set()  # offsets that wait for another owner
        self.recorded: Counter[tuple[str, int]] = Counter()
        self.named: int | None = None

    def apply(self, write: ClaimWrite) -> None:
        flush, row = write.flush, self.row
        if row is None or flush.claim.claim_id != row.claim_id or flush.was != row.acked_to:
            raise Fenced
        self.named = flush.running
        row.acked_to = flush.acked_to
        self._record(flush, row)
        if row.source is ClaimSource.STREAM:
            self._keep(row, flush, write)
        elif write.rest is not None:
            assert {message.offset for message in write.rest.messages} == row.retries
        elif flush.finished:
            assert not row.retries, "no retry stays claimed by a claim that is gone"
            self.row = None

    def _record(self, flush: Flush, row: Row) -> None:
        for offset, _, _ in flush.done_offsets:
            self.recorded["done", offset] += 1
        for failure in flush.failures:
            self.recorded["failed", failure.offset] += 1
        for offset, _ in flush.blocked:
            self.recorded["released", offset] += 1
        row.retries -= {offset for offset, _, _ in flush.done_offsets}
        row.retries -= {failure.offset for failure in flush.failures} | {offset for offset, _ in flush.blocked}

    def _keep(self, row: Row, flush: Flush, write: ClaimWrite) -> None:
        last = flush.acked_to if write.rest is not None else write.last
        if last is not None:
            self.given_back |= {offset for offset in self.offsets if last < offset <= row.hi}
            row.hi = last
        if write.rest is not None:
            moved = {message.offset for message in write.rest.messages}
            self.row = Row(
                write.rest.claim_id, write.rest.lo, write.rest.hi, write.rest.acked_to, ClaimSource.RETRY, moved
            )
            self._finish(row, moved)
        elif flush.finished:
            self.row = None
            self._finish(row, set())

    def _finish(self, row: Row, moved: set[int]) -> None:
        """Everything up to the end of a finished range that is not recorded otherwise counts as done."""
        assert row.acked_to >= row.hi, "what is beyond the acked offset would be lost"
        others = {offset for _, offset in self.recorded} | moved
        for offset in self.offsets:
            if offset <= row.hi and offset not in others:
                self.recorded["done", offset] += 1


def claim_of(order: Order, source: ClaimSource, rng: random.Random) -> Claim:
    offsets = sorted(rng.sample(range(LO, HI + 1), rng.randint(1, 9)))
    messages = [
        Message(
            "t", 0, (offset, bytes([offset]) * 16, bytes([rng.randrange(3)]), None, b"", b"1", "2026-01-01"), Decoder()
        )
        for offset in offsets
    ]
    return Claim(1, 0, LO, HI, LO - 1, 1, source, Isolation.NONE, "c", messages, order=order)


class Owner:
    """Begins and ends messages at random, and writes; as a consumer does, or a worker."""

    def __init__(self, order: Order, source: ClaimSource, seed: int) -> None:
        self.rng = random.Random(seed)
        claim = claim_of(order, source, self.rng)
        self.order, self.store, self.progress = order, Store(claim), ClaimProgress(claim, 1, 60.0)
        self.waiting = list(claim.messages)
        self.running: dict[int, Message] = {}
        self.ends: dict[int, str] = {}  # what was told to the progress, by offset

    def begin(self) -> None:
        if not self.waiting or (self.order is Order.PARTITION and (self.running or self.progress.halted)):
            return
        message = self.waiting[0]
        if self.progress.write is not None and self.progress.write.rest is not None:
            return  # nothing begins while what runs is moved
        if not self.progress.may_begin(message):
            self.waiting.clear()
        elif self.progress.waits(message):
            self.waiting.pop(0)
            self.progress.end([Ended.untouched(message)])
        elif message.key_bytes not in {one.key_bytes for one in self.running.values()} or self.order is not Order.KEY:
            self.running[message.offset] = self.waiting.pop(0)

    def end(self) -> None:
        if not self.running:
            return
        ends = []
        for offset in self.rng.sample(sorted(self.running), self.rng.randint(1, len(self.running))):
            message, how = (
                self.running.pop(offset),
                self.rng.choice(["done", "done", "done", "failed", "dead", "released"]),
            )
            self.ends[offset] = how
            retry_in_s = 1.0 if how == "failed" else None
            failure = Failure(offset, 1, Outcome.FAILED, "no", retry_in_s, "no" if how == "dead" else None, 0.1)
            ends.append(Ended(message, 0.1, failure if how in ("failed", "dead") else None, released=how == "released"))
        self.progress.end(ends)

    def write(self) -> None:
        """Write what is due; the answer may be lost before or after the store has committed it."""
        write = self.progress.write or self._plan()
        if write is None:
            return
        fate = self.rng.random()
        if fate < 0.2:
            write.in_doubt = True  # it did not arrive
            return
        try:
            self.store.apply(write)
        except Fenced:
            assert write.in_doubt, "nobody else writes"
        if fate < 0.4:
            write.in_doubt = True  # the answer did not
        else:
            self.progress.confirm(write, 1.0)

    def _plan(self) -> ClaimWrite | None:
        progress = self.progress
        if progress.closed:
            return None
        if progress.all_ended:
            return progress.finish(60.0)
        if self.rng.random() < 0.3 and (write := progress.give_back(self.running, 60.0)) is not None:
            self.waiting.clear()
            return write
        return progress.save(60.0)

    def run(self) -> None:
        while not self.progress.closed:
            self.rng.choice([self.begin, self.begin, self.end, self.write])()
            if not self.running and (not self.waiting or self.progress.halted) and self.rng.random() < 0.3:
                self._come_to_an_end()

    def _come_to_an_end(self) -> None:
        if self.progress.write is None and not self.progress.closed:
            write = self.progress.finish(60.0) if self.progress.all_ended else self.progress.give_back((), 60.0)
            assert write is not None, "nothing runs"
        self.write()


@pytest.mark.parametrize("source", [ClaimSource.STREAM, ClaimSource.RETRY])
@pytest.mark.parametrize("order", list(Order))
def test_each_message_ends_in_one_place_whatever_is_lost(order: Order, source: ClaimSource) -> None:
    for seed in range(400):
        owner = Owner(order, source, seed)
        owner.run()
        store = owner.store
        assert store.row is None, seed
        assert set(store.recorded.values()) <= {1}, (seed, "nothing is recorded twice")
        places = Counter(offset for _, offset in store.recorded) + Counter(store.given_back)
        assert places == Counter(store.offsets), (seed, "nothing is lost, and nothing is in two places")
        recorded = {offset: how for how, offset in store.recorded}
        for offset, how in owner.ends.items():
            assert recorded[offset] == {"dead": "failed"}.get(how, how), (seed, offset, "it ended like that")
        untouched = store.offsets - owner.ends.keys()
        assert all(recorded.get(offset, "released") == "released" for offset in untouched), (seed, "none is skipped")
        assert owner.progress.unsaved == 0


def test_the_model_finds_what_is_written_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A progress that makes a new write of what is in doubt is found out."""
    confirm = ClaimProgress.confirm

    def forget(self: ClaimProgress, write: ClaimWrite, now: float) -> None:
        confirm(self, replace(write, flush=replace(write.flush, done_offsets=())), now)

    monkeypatch.setattr(ClaimProgress, "confirm", forget)
    with pytest.raises(AssertionError):
        test_each_message_ends_in_one_place_whatever_is_lost(Order.NONE, ClaimSource.RETRY)


def simple(count: int = 3, order: Order = Order.NONE, source: ClaimSource = ClaimSource.STREAM) -> ClaimProgress:
    messages = [
        Message("t", 0, (offset, bytes([offset]) * 16, b"k", None, b"", b"1", "2026-01-01"), Decoder())
        for offset in range(1, count + 1)
    ]
    return ClaimProgress(Claim(1, 0, 1, count + 2, 0, 1, source, Isolation.NONE, "c", messages, order=order), 1, 60.0)


def test_the_end_of_a_range_passes_what_has_no_message() -> None:
    progress = simple()
    messages = progress.claim.messages
    progress.end([Ended(message) for message in messages[:2]])
    assert progress.acked_to == 2
    progress.end([Ended(messages[2])])
    assert (progress.acked_to, progress.all_ended) == (5, True)


def test_a_commit_in_a_handlers_transaction_carries_what_is_owed() -> None:
    progress = simple(source=ClaimSource.RETRY)
    first, second, third = progress.claim.messages
    progress.end([Ended(first, 0.5)])
    flush = progress.committing([Ended(second, 0.25)], 60.0)
    assert (flush.acked_to, flush.was, flush.done_offsets) == (2, 0, ((1, 1, 500), (2, 1, 250)))
    progress.committed(flush, [Ended(second, 0.25)], 1.0)
    assert (progress.acked_to, progress.is_dirty(1.0)) == (2, False)
    progress.end([Ended(third)])
    assert [offset for offset, *_ in progress.finish(60.0).flush.done_offsets] == [3]


def test_a_cut_whose_answer_was_lost_is_part_of_every_later_write() -> None:
    """Also if a handler's commit comes between, which makes the write in doubt void: the rest would be lost."""
    progress = simple()
    first, *_ = progress.claim.messages
    cut = progress.give_back({1}, 60.0)
    assert cut is not None and cut.last == 1
    flush = progress.committing([Ended(first)], 60.0)
    progress.committed(flush, [Ended(first)], 1.0)
    assert progress.is_uncut and progress.save(60.0).last == 1
    assert progress.write is not None
    progress.confirm(progress.write, 1.0)
    assert not progress.is_uncut and progress.finish(60.0).last is None


def test_a_suspect_is_named_until_it_has_ended() -> None:
    progress = simple(1)
    (message,) = progress.claim.messages
    progress.named = 1
    write = progress.save(60.0)
    assert write.flush.running == 1 and progress.may_be_named
    progress.confirm(write, 1.0)
    progress.end([Ended(message)])
    assert progress.may_be_named, "the store does not know of its end"
    write = progress.finish(60.0)
    assert write.flush.running is None
    progress.confirm(write, 1.0)
    assert not progress.may_be_named


def test_an_error_that_waits_for_lower_messages_keeps_no_frames_alive() -> None:
    progress = simple(2)
    progress.end([Ended(progress.claim.messages[1], error=ValueError("it holds what its handler held"))])
    assert all(one.error is None for one in progress._ahead.values())


def test_reports_are_written_once_and_removed_with_their_messages() -> None:
    progress = simple(2)
    first, _ = progress.claim.messages
    progress.reports.add(ProgressReport(first.uid, 1, 0.5, "half"))
    write = progress.save(60.0)
    assert [report.fraction for report in write.flush.reports] == [0.5]
    progress.confirm(write, 1.0)
    assert not progress.is_dirty(9.0)
    progress.end([Ended(first)])
    assert progress.save(60.0).flush.reports_ended == (first.uid,)
