"""The progress of one claim, as a pure value: what has ended, and what the store is owed.

It has no thread, no lock and no connection; its owner holds a lock around every call.

Ends in the order of the stream move the acked offset of a range. A message that ends before a lower one is kept ahead:
it counts once all below it have ended, or once those are detached, that is, moved to a claim of retries beside the
stream, where each of them ends by itself. Retries always end each by itself, in any order; their acked offset counts
them.

Each change of the claim is one transaction, a :class:`ClaimWrite`. While one is under way, or its answer was lost, no
other one begins: the same one is sent again, unchanged, until it is known that it was committed, or that the claim has
another owner.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from emsworker.core.flush import Flush, ResultRow
from emsworker.core.ids import new_claim_id
from emsworker.core.model import Claim, ClaimSource, Failure, Isolation, Message, Order
from emsworker.core.run import ProgressReport

_REPORT_PAUSE_S = 0.5


class Ended(NamedTuple):
    """The end of a message.

    Attributes:
        ran_s: the seconds that it ran.
        failure: set if its attempt has failed.
        results: the results to store.
        error: the error of a failure, for the hooks; a batch may give only a text.
        released: it goes back with no attempt charged.
        delivered: it had begun; otherwise it is released because an earlier message of its key runs first, or because
            the claim ends early.
    """

    message: Message
    ran_s: float = 0.0
    failure: Failure | None = None
    results: Sequence[ResultRow] = ()
    error: BaseException | None = None
    released: bool = False
    delivered: bool = True

    @classmethod
    def untouched(cls, message: Message) -> Ended:
        """Return the end of a message that goes back although it has not begun."""
        return cls(message, released=True, delivered=False)

    @property
    def runs_again(self) -> bool:
        """True if later messages of an ordered group must wait for it."""
        return self.released or (self.failure is not None and self.failure.retry_in_s is not None)


@dataclass(slots=True)
class ClaimWrite:
    """A transaction that changes a claim.

    Attributes:
        last: the claim is kept only up to this offset, and the rest is given back.
        isolation: the least isolation with which the rest is to be run.
        rest: the claim to which the running messages are moved.
        in_doubt: it was sent, and its answer was lost.
        covers: the number of ended messages that are written down once it is committed.
    """

    flush: Flush
    last: int | None = None
    isolation: Isolation = Isolation.NONE
    rest: Claim | None = None
    in_doubt: bool = False
    covers: int = 0


class Reports:
    """The last progress report of each running message.

    Attributes:
        told: uids of running messages that have reported.
    """

    def __init__(self) -> None:
        self.told: set[bytes] = set()
        self._fresh: dict[bytes, ProgressReport] = {}
        self._stale: list[bytes] = []  # uids of those that have ended since
        self._written_at = 0.0

    def add(self, report: ProgressReport) -> None:
        """Keep the last report of a running message for the next write."""
        self._fresh[report.uid] = report
        self.told.add(report.uid)

    def drop(self, ended: Sequence[Ended]) -> None:
        """Schedule the reports of messages that no longer run for removal."""
        uids = self.told.intersection([one.message.uid for one in ended])
        self.told -= uids
        self._stale += uids
        for uid in uids:
            self._fresh.pop(uid, None)

    def is_due(self, now: float) -> bool:
        """Return whether there is a report, and the last write is long enough ago."""
        return bool(self._fresh) and now - self._written_at >= _REPORT_PAUSE_S

    @property
    def fresh(self) -> tuple[ProgressReport, ...]:
        """Reports to write."""
        return tuple(self._fresh.values())

    @property
    def stale(self) -> tuple[bytes, ...]:
        """Uids whose reports are to be removed."""
        return tuple(self._stale)

    def written(self, fresh: Sequence[ProgressReport], stale: Sequence[bytes], now: float) -> None:
        """Drop reports and removals that have been committed."""
        del self._stale[: len(stale)]
        for report in fresh:
            self._written_at = now
            if self._fresh.get(report.uid) is report:
                del self._fresh[report.uid]


@dataclass(slots=True)
class _Owed:
    """Ends that are to be recorded beside the acked offset."""

    failures: list[Failure]
    done: list[tuple[int, int, int]] = field(default_factory=list)  # retries: offset, attempt, milliseconds
    released: list[tuple[int, bytes | None]] = field(default_factory=list)
    results: list[ResultRow] = field(default_factory=list)


class ClaimProgress:
    """Progress of one claim.

    Args:
        claim: the claim; it is replaced when its running messages are detached, and cut when the rest goes back.
        topic_id: of its topic.
        timeout_s: the seconds for which the claim was taken.

    Attributes:
        acked_to: the last finished offset; of retries the number of those that ended, beginning below the first.
        last: nothing beyond this offset may begin.
        closed: it is finished, or has another owner.
        write: the write that is under way, or in doubt.
        halted: of a partition in order: a message must be retried before the next one.
        named: the suspect that has the process to itself; recorded, so that a crash charges it.
        ended: the number of messages that began and have ended.
        result_bytes: the size of the results that are not written down.
        written_at: when the last write was committed; told_s: how long the claim may take from then on.
    """

    def __init__(self, claim: Claim, topic_id: int, timeout_s: float) -> None:
        self.claim = claim
        self.acked_to = claim.acked_to + len(claim.gone)
        self.last = claim.hi
        self.closed = self.halted = False
        self.write: ClaimWrite | None = None
        self.named: int | None = None
        self.ended = 0
        self.reports = Reports()
        self.written_at, self.told_s = claim.taken_ticks, timeout_s
        self.result_bytes = 0
        self._topic_id = topic_id
        self._is_range = claim.source is ClaimSource.STREAM
        self._owed = _Owed([Failure.gone(offset, attempt) for offset, attempt in claim.gone])
        self._blocked_keys = set(claim.blocked_keys)
        self._next = 0  # of a range: index of the lowest message that has not ended
        self._ahead: dict[int, Ended] = {}  # of a range, by offset: ended before a lower one has
        self._retried: set[int] = set()  # of retries: offsets of those that have ended
        self._late: list[Ended] = []  # ended while the running messages are moved
        self._written_to = claim.acked_to
        self._saved = 0  # of the ended messages: known to be written down
        self._may_be_named = False
        if self._is_range:
            self._advance()

    # -- ends ----------------------------------------------------------------------------------------------------------

    def waits(self, message: Message) -> bool:
        """Return whether an earlier message of its key must be run again first."""
        return message.key_bytes is not None and message.key_bytes in self._blocked_keys

    def may_begin(self, message: Message) -> bool:
        """Return whether a message is still ours: the rest of a claim may have been given back."""
        return not self.closed and message.offset <= self.last and message.offset not in self._retried

    def end(self, ends: Sequence[Ended]) -> None:
        """Record the ends of messages, in any order. Those of a call are one step: none of them is written alone."""
        self.ended += len(ends)
        for one in ends:
            if one.released or one.failure is not None:
                self.ended -= not one.delivered
                self._note_order(one)
        if self.named is not None and any(one.message.offset == self.named for one in ends):
            self.named = None
        if self.reports.told:
            self.reports.drop(ends)
        if self.write is not None and self.write.rest is not None:
            self._late += ends
        else:
            self._end(ends)

    def _end(self, ends: Sequence[Ended]) -> None:
        if not self._is_range:
            self._end_retries(ends)
        elif not self._ahead and self._are_next(ends):
            for one in ends:
                if one.failure is not None or one.released or one.results:  # else its offset says it all
                    self._note(one)
            self._next += len(ends)
            self.acked_to = self.last if self._next == len(self.claim.messages) else ends[-1].message.offset
        else:  # an error's frames would keep alive what its handler had in memory
            self._ahead |= {one.message.offset: one._replace(error=None) for one in ends}
            self._advance()

    def _note_order(self, one: Ended) -> None:
        if not one.runs_again:
            return
        if self.claim.order is Order.PARTITION:
            self.halted = True
        elif self.claim.order is Order.KEY and one.message.key_bytes is not None:
            self._blocked_keys.add(one.message.key_bytes)

    def _end_retries(self, ends: Sequence[Ended]) -> None:
        for one in ends:
            self._note(one)
            self._retried.add(one.message.offset)
        self.acked_to += len(ends)

    def _are_next(self, ends: Sequence[Ended]) -> bool:
        """Return whether they are the lowest messages that have not ended."""
        messages, first, count = self.claim.messages, self._next, len(ends)
        if count == 1:
            return first < len(messages) and messages[first] is ends[0].message
        return [one.message for one in ends] == messages[first : first + count]

    def _advance(self) -> None:
        messages = self.claim.messages
        while self._next < len(messages) and messages[self._next].offset in self._ahead:
            self.acked_to = messages[self._next].offset
            self._note(self._ahead.pop(self.acked_to))
            self._next += 1
        if self._next == len(messages):
            self.acked_to = self.last

    def _note(self, one: Ended) -> None:
        message = one.message
        if one.released:
            self._owed.released.append((message.offset, message.key_bytes if self.claim.order is Order.KEY else None))
        elif one.failure is not None:
            self._owed.failures.append(one.failure)
        elif not self._is_range:
            self._owed.done.append(_done_retry(one))
        if one.results:
            self._owed.results += one.results
            self.result_bytes += _bytes_of(one.results)

    def _unbegun(self, running: Collection[int]) -> list[Message]:
        """Return the messages that have not ended, without those that run."""
        if not self._is_range:
            return [m for m in self.claim.messages if m.offset not in self._retried and m.offset not in running]
        rest = self.claim.messages[self._next :]
        return [message for message in rest if message.offset not in self._ahead and message.offset not in running]

    @property
    def all_ended(self) -> bool:
        """True if every message of the claim has ended."""
        messages = self.claim.messages
        return self._next == len(messages) if self._is_range else self._retried.issuperset(m.offset for m in messages)

    @property
    def is_ahead(self) -> bool:
        """True if a message has ended before a lower one, which holds up its record."""
        return bool(self._ahead)

    @property
    def unsaved(self) -> int:
        """Number of messages that have ended and are not known to be written down."""
        return self.ended - self._saved

    @property
    def passed(self) -> int:
        """Number of offsets that it has passed, including those with nothing to run."""
        return self.acked_to - self.claim.acked_to if self._is_range else self.ended

    # -- what the store is owed ----------------------------------------------------------------------------------------

    def is_dirty(self, now: float) -> bool:
        """Return whether something has changed since the last write."""
        owed = self._owed
        changes = owed.failures or owed.done or owed.released or self.reports.stale
        return bool(changes) or self.acked_to != self._written_to or self.reports.is_due(now)

    @property
    def may_be_named(self) -> bool:
        """True if a crash would charge its message, as far as is known: a write in doubt may have been committed."""
        return self._may_be_named and not self.closed

    def flush(self, needed_s: float, *, finished: bool = False) -> Flush:
        """Return the progress so far.

        Args:
            needed_s: the seconds that the claim may take from now on.
            finished: it ends the claim.
        """
        owed, reports = self._owed, self.reports
        return Flush(
            self.claim,
            self._topic_id,
            self.acked_to,
            needed_s,
            running=self.named,
            finished=finished,
            done_offsets=tuple(owed.done),
            failures=tuple(owed.failures),
            results=tuple(owed.results),
            blocked=tuple(owed.released),
            reports=reports.fresh,
            reports_ended=reports.stale,
            was=self._written_to,
        )

    def save(self, needed_s: float) -> ClaimWrite:
        """Begin to write the progress down."""
        return self._begin(ClaimWrite(self.flush(needed_s)))

    def finish(self, needed_s: float) -> ClaimWrite:
        """Begin to end the claim, all of whose messages have ended."""
        return self._begin(ClaimWrite(self.flush(needed_s, finished=True)))

    def give_back(
        self, running: Collection[int], needed_s: float, isolation: Isolation = Isolation.NONE
    ) -> ClaimWrite | None:
        """Begin to give back what has not begun; with nothing running, that ends the claim.

        Args:
            running: offsets of the messages that run, and stay.
            isolation: the least isolation with which the rest is to be run.

        Returns:
            ``None`` if there is nothing that others could take.
        """
        if not running:
            return self._end_early(needed_s, isolation)
        if not self._is_range:
            return self._release_retries(running, needed_s)
        if self.claim.order is Order.PARTITION:
            return None
        rest, top = self._unbegun(running), max(running)
        if self._ahead or self.claim.order is Order.KEY or any(message.offset < top for message in rest):
            return self._detach(running, needed_s)
        if not rest:
            return None
        self._cut(top)
        return self.save(needed_s)

    def _end_early(self, needed_s: float, isolation: Isolation) -> ClaimWrite:
        """End the claim after all that has ended. What has not, below that, is released by itself; the rest goes back.

        So nothing that has ended is repeated.
        """
        if not self._is_range:
            self._release(self._unbegun(()))
            return self.finish(needed_s)
        self._fill_up_to(max(self._ahead, default=self.acked_to), ())
        if self._next < len(self.claim.messages):
            self._cut(self.acked_to)
        write = self.finish(needed_s)
        write.isolation = isolation
        return write

    def _release_retries(self, running: Collection[int], needed_s: float) -> ClaimWrite | None:
        unbegun = self._unbegun(running)
        self._release(unbegun)
        if self.claim.order is not Order.KEY:
            return self.save(needed_s) if unbegun else None
        rest = replace(self.claim, messages=self._of(running), gone=[])  # from now on it holds up its keys only
        return self._begin(ClaimWrite(self.flush(needed_s), rest=rest))

    def _detach(self, running: Collection[int], needed_s: float) -> ClaimWrite:
        self._fill_up_to(max(*running, *self._ahead, self.acked_to), running)
        messages = self._of(running)
        lo, hi = messages[0].offset, messages[-1].offset
        rest = replace(
            self.claim,
            lo=lo,
            hi=hi,
            acked_to=lo - 1,
            claim_id=new_claim_id(),
            source=ClaimSource.RETRY,
            messages=messages,
            gone=[],
            keys={message.offset: message.key_bytes for message in messages},
        )
        return self._begin(ClaimWrite(self.flush(needed_s, finished=True), rest=rest))

    def _of(self, running: Collection[int]) -> list[Message]:
        return [message for message in self.claim.messages if message.offset in running]

    def _cut(self, last: int) -> None:
        self.last = last
        self.claim.messages = [message for message in self.claim.messages if message.offset <= last]

    def _release(self, messages: Sequence[Message]) -> None:
        self._end_retries([Ended.untouched(message) for message in messages])

    def _fill_up_to(self, top: int, running: Collection[int]) -> None:
        """Count messages up to ``top`` as ended: those that run are moved elsewhere, others are released."""
        messages = self.claim.messages
        while self._next < len(messages) and (message := messages[self._next]).offset <= top:
            if message.offset not in running:
                self._note(self._ahead.pop(message.offset, Ended.untouched(message)))
            self._next += 1
        self.acked_to = self.last if self._next == len(messages) else max(top, self.acked_to)

    def _begin(self, write: ClaimWrite) -> ClaimWrite:
        if self.last != self.claim.hi and write.rest is None:  # until that is known to be committed, in every write
            write.last = self.last
        self._may_be_named |= write.flush.running is not None
        write.covers = self.ended - sum(one.delivered for one in self._ahead.values())
        self.write = write
        return write

    # -- after a write -------------------------------------------------------------------------------------------------

    def confirm(self, write: ClaimWrite, now: float) -> None:
        """Note that a write was committed."""
        flush, owed = write.flush, self._owed
        self.reports.written(flush.reports, flush.reports_ended, now)
        failures, done, released = len(flush.failures), len(flush.done_offsets), len(flush.blocked)
        results, result_bytes = len(flush.results), _bytes_of(flush.results)
        is_last, rest = flush.finished and write.rest is None, write.rest
        # No calls from here on: an exception from outside would come between, and the write be confirmed twice.
        del owed.failures[:failures], owed.done[:done], owed.released[:released], owed.results[:results]
        self.result_bytes -= result_bytes
        self.write = None
        self._saved = write.covers
        self._may_be_named = flush.running is not None
        self._written_to = flush.acked_to
        self.written_at, self.told_s = now, flush.timeout_s
        self.closed |= is_last
        if write.last is not None:
            self.claim.hi = write.last
        if rest is not None:
            self._go_on_with(rest)

    def _go_on_with(self, rest: Claim) -> None:
        if rest.claim_id != self.claim.claim_id:
            self.acked_to = self._written_to = rest.acked_to
        self.claim, self.last, self._is_range = rest, rest.hi, False
        late, self._late = self._late, []
        self._end(late)

    def committing(self, ends: Sequence[Ended], needed_s: float) -> Flush:
        """Return the progress with the ends of messages that a transaction of their handler commits."""
        flush, is_range = self.flush(needed_s), self._is_range
        acked_to = ends[-1].message.offset if is_range else self.acked_to + len(ends)
        done = [_done_retry(one) for one in ends if one.failure is None and not is_range]
        return replace(
            flush,
            acked_to=acked_to,
            running=None,
            done_offsets=(*flush.done_offsets, *done),
            failures=(*flush.failures, *(one.failure for one in ends if one.failure is not None)),
            results=(*flush.results, *(row for one in ends for row in one.results)),
        )

    def committed(self, flush: Flush, ends: Sequence[Ended], now: float) -> None:
        """Note that :meth:`committing` was committed.

        A write in doubt had not been committed before, or the fence would have refused this; it is void now.
        """
        self.end(ends)
        self.confirm(ClaimWrite(flush, covers=self.ended), now)

    @property
    def is_uncut(self) -> bool:
        """True if what goes back is not known to be recorded."""
        return not self.closed and self.last != self.claim.hi

    def close(self) -> None:
        """Note that nothing more is to be written: the claim has another owner, or its end is on its way."""
        self.closed, self.write = True, None


def _done_retry(ended: Ended) -> tuple[int, int, int]:
    """Return offset, attempt and milliseconds of a retry that succeeded."""
    return ended.message.offset, ended.message.attempt, round(ended.ran_s * 1000)


def _bytes_of(results: Sequence[ResultRow]) -> int:
    return sum(len(row.body or b"") for row in results)
