"""A claim whose messages a program pulls, and ends in any order.

Ends in the order of the stream move the acked offset of a range. A message that ends before a lower one cannot: if the
lower one is still in hand at the next write, all messages in hand are detached, that is, moved to a claim of retries
beside the stream. Each of them ends by itself from then on, and the range is finished. Whatever ends a message is
therefore durable within the ack interval, in any order.

Each change is one transaction, a :class:`ClaimWrite`. If its answer is lost, the same one is sent again, unchanged,
until it is known that it was committed or that the claim has another owner.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from emsworker.broker.channel import Channel
from emsworker.consume.claim_run import Ended, ProgressBuffer
from emsworker.core.errors import EmsError, FenceLost
from emsworker.core.flush import Flush
from emsworker.core.ids import new_claim_id
from emsworker.core.model import Claim, ClaimSource, Failure, Message, Order
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.process.forks import Mutex
from emsworker.core.run import ProgressReport, Run, check_span

_SLACK_S = 2.0  # the owner retries a message that is over its time; only if it cannot, recovery does
_EARLY_S = 0.25
_HOARD_S = 1.0


class Settlement(NamedTuple):
    """The end of a message in hand.

    Attributes:
        failure: its attempt has failed; ``None`` if it is done, or released.
        released: it was given back, with no attempt charged.
        is_own: the program ended it; otherwise it was never delivered, and is given back.
    """

    message: Message
    ran_s: float = 0.0
    failure: Failure | None = None
    released: bool = False
    is_own: bool = True


@dataclass(slots=True)
class ClaimWrite:
    """A transaction that changes a claim.

    Attributes:
        last: the claim is kept only up to this offset, and the rest is given back.
        rest: the claim to which the messages in hand are moved.
        in_doubt: it was sent, and its answer was lost.
        covers: the number of messages that have ended and are written down by it.
    """

    flush: Flush
    last: int | None = None
    rest: Claim | None = None
    in_doubt: bool = False
    covers: int = 0


class PulledRun(Run):
    """The run of a message that a program has in hand: its time, and how it ended.

    Args:
        pulled: its claim.
        message: the message.
        timeout_s: the seconds after which it is retried.
        lock: of the consumer.

    Attributes:
        ended: why nothing can be done with the message any longer.
    """

    __slots__ = ("_lock", "began", "deadline", "ended", "message", "pulled")

    def __init__(self, pulled: PulledClaim, message: Message, timeout_s: float, lock: Mutex) -> None:
        self.pulled, self.message, self._lock = pulled, message, lock
        self.began = ticks()
        self.deadline = self.began + timeout_s
        self.ended: EmsError | None = None

    @property
    def time_left(self) -> float:
        """Seconds until the message is retried; see :class:`Run`."""
        return 0.0 if self.ended is not None else max(0.0, self.deadline - ticks())

    def extend(self, seconds: float) -> None:
        """Ask for more time; see :class:`Run`.

        Raises:
            EmsError: the message is no longer in hand; the error is that of an ack.
        """
        check_span(seconds)
        with self._lock:
            if self.ended is not None:
                raise self.ended
            self.deadline = max(self.deadline, ticks() + seconds)

    def report_progress(self, fraction: float | None = None, text: str = "") -> None:
        """Report progress; see :class:`Run`."""
        report = ProgressReport.checked(self.message.uid, self.message.attempt, fraction, text)
        if self.ended is not None:
            raise self.ended
        self.pulled.progress_buffer.tell(report)


class PulledClaim:
    """Progress of one claim; the caller of all methods but :meth:`send` holds ``lock``.

    Args:
        claim: the claim.
        topic_id: of its topic.
        timeout_s: the group's timeout, which the claim was taken with.
        term: of the lease under which it was taken.
        lock: of the consumer.
        hold_s: seconds that a message of it may be in hand.
    """

    def __init__(
        self, claim: Claim, topic_id: int, timeout_s: float, term: tuple[int, int], lock: Mutex, hold_s: float
    ) -> None:
        self.claim = claim
        self.hold_s = hold_s
        self.term = term
        self.unwanted = False  # what was not delivered goes back at once
        self.sending = forks.RLock()  # held while a write is sent
        self.write: ClaimWrite | None = None  # under way, or in doubt
        self.finished = False  # recorded as finished, or lost
        self.owner: object = None  # the consumer's messages in hand
        self.held: dict[int, PulledRun] = {}
        self.queue = deque(claim.messages)
        self.progress_buffer = ProgressBuffer(lock)
        self.is_alone = False  # the process is to be that of its suspect message alone
        self._waits_since: float | None = None  # for the others in hand, before that
        self.unsaved = 0  # messages that have ended and are not known to be written down
        self._lock = lock
        self._topic_id = topic_id
        self._timeout_s = timeout_s
        self._halted = False  # of a partition in order: a message must be retried before the next one
        self._blocked_keys = set(claim.blocked_keys)
        self._next = 0  # of a range: index of the lowest message that has not ended
        self._ahead: dict[int, Settlement] = {}  # by offset: of a range: ended before a lower one has
        self._ahead_since = 0.0
        self._late: list[Settlement] = []  # ended while the messages in hand are moved
        self._acked_to = self._written_to = claim.acked_to
        self._failures = [Failure.gone(offset, attempt) for offset, attempt in claim.gone]
        self._done_retries: list[tuple[int, int, int]] = []
        self._released: list[tuple[int, bytes | None]] = []
        self._running: int | None = None
        self._may_be_named = False
        self._touched_at = self._written_at = ticks()
        self._told_until = claim.taken_ticks + timeout_s
        if self._is_range:
            self._advance()
        else:
            self._acked_to += len(claim.gone)

    @property
    def _is_range(self) -> bool:
        return self.claim.source is ClaimSource.STREAM

    @property
    def all_settled(self) -> bool:
        """True if no message is in hand or waits for delivery."""
        return not self.held and not self.queue

    @property
    def has_ready(self) -> bool:
        """True if any of its messages could be delivered now, in any order."""
        is_free = self.claim.order is Order.NONE and not self.claim.isolation.alone
        return is_free and self.is_ready

    @property
    def is_ready(self) -> bool:
        """True if a message of it could be delivered now."""
        return self._next_message() is not None

    # -- isolation of a suspect message --------------------------------------------------------------------------------

    @property
    def keeps_others_out(self) -> bool:
        """True while its suspect message is in hand and has the process to itself."""
        if not self.is_alone or not self.held:
            return False
        return ticks() < max(run.began for run in self.held.values()) + self.claim.isolation.room_s

    @property
    def is_named(self) -> bool:
        """True if a crash would charge its message, as far as is known: a write in doubt may have been committed."""
        return self._may_be_named and not self.finished

    def waits_for_others(self) -> bool:
        """Return whether its suspect message still waits until those in hand are settled; begin to if it did not."""
        self._touched_at = now = ticks()  # it is no hoard: whoever took it over would begin to wait anew
        if self._waits_since is None:
            self._waits_since = now
        return now < self._waits_since + self.claim.isolation.room_s

    # -- delivery ------------------------------------------------------------------------------------------------------

    def take(self, taken: list[Message]) -> bool:
        """Move the next message that may be delivered now to the end of ``taken``; return whether there was one.

        It is there first, so that an exception from outside leaves no message in hand that :meth:`put_back` misses.
        """
        message = self._next_message()
        if message is None:
            return False
        taken.append(message)
        message.run = run = PulledRun(self, message, self.hold_s, self._lock)
        self.queue.remove(message)
        self.held[message.offset] = run
        self._touched_at = ticks()
        return True

    def _next_message(self) -> Message | None:
        if self.finished or self.unwanted or (self.write is not None and self.write.rest is not None):
            return None
        if self.claim.order is Order.PARTITION:
            return None if self._halted or self.held or not self.queue else self.queue[0]
        if self.claim.order is Order.NONE:
            return self.queue[0] if self.queue else None
        busy = {run.message.key_bytes for run in self.held.values()}
        for message in list(self.queue):
            if message.key_bytes is None:
                return message
            if message.key_bytes in self._blocked_keys:
                self.queue.remove(message)
                self._end(Settlement(message, released=True, is_own=False))
            elif message.key_bytes not in busy:
                return message
        return None

    def put_back(self, message: Message) -> None:
        """Return a message that did not reach the program to the head of the queue."""
        was_held = self.held.pop(message.offset, None) is not None
        message.run = Run()
        if was_held or message not in self.queue:  # an exception may have come while it was taken
            self.queue.appendleft(message)

    # -- ends ----------------------------------------------------------------------------------------------------------

    def settle(self, settlement: Settlement, ended: EmsError) -> None:
        """End a message in hand; ``ended`` is raised if it is ended again."""
        self.held.pop(settlement.message.offset).ended = ended
        self.unsaved += 1
        self._touched_at = ticks()
        if self.write is not None and self.write.rest is not None:
            self._late.append(settlement)
        else:
            self._end(settlement)

    def _end(self, settlement: Settlement) -> None:
        message, failure = settlement.message, settlement.failure
        if settlement.released or (failure is not None and failure.retry_in_s is not None):
            self._halted = self.claim.order is Order.PARTITION
            if self.claim.order is Order.KEY and message.key_bytes is not None:
                self._blocked_keys.add(message.key_bytes)
        if not self._is_range:
            self._note(settlement)
            self._acked_to += 1
            return
        if not self._ahead:
            self._ahead_since = ticks()
        self._ahead[message.offset] = settlement
        self._advance()

    def _advance(self) -> None:
        messages = self.claim.messages
        while self._next < len(messages) and messages[self._next].offset in self._ahead:
            self._note(self._ahead.pop(messages[self._next].offset))
            self._acked_to = messages[self._next].offset
            self._next += 1
        if self._next == len(messages):
            self._acked_to = self.claim.hi

    def _note(self, settlement: Settlement) -> None:
        message = settlement.message
        if settlement.released:
            self._released.append((message.offset, message.key_bytes if self.claim.order is Order.KEY else None))
        elif settlement.failure is not None:
            self._failures.append(settlement.failure)
        elif not self._is_range:
            self._done_retries.append((message.offset, message.attempt, round(settlement.ran_s * 1000)))
        self.progress_buffer.ended([Ended(message)])

    def overdue(self, now: float) -> Iterator[PulledRun]:
        """Yield the runs of messages in hand whose time is over."""
        for run in list(self.held.values()):
            if now > run.deadline:
                yield run

    def lose(self, error: FenceLost) -> None:
        """Give everything up: the claim has another owner."""
        for run in self.held.values():
            run.ended = error
        self.held.clear()
        self.queue.clear()
        self.finished = self.progress_buffer.closed = True
        self.write = None

    # -- writing down --------------------------------------------------------------------------------------------------

    def plan(self, interval_s: float, *, at_once: bool = False) -> ClaimWrite | None:
        """Return the write that is due, which is under way from then on; ``None`` if nothing is due.

        Args:
            interval_s: seconds for which ends may wait, so that one write holds many.
            at_once: they do not wait.
        """
        if self.write is None and not self.finished:
            now = ticks()
            is_due = at_once or now - self._written_at >= interval_s
            self._begin(self._plan(now, interval_s, is_due=is_due, at_once=at_once))
        return self.write

    def _begin(self, write: ClaimWrite | None) -> None:
        if write is not None:
            self._may_be_named |= write.flush.running is not None
            write.covers = self.unsaved - sum(one.is_own for one in self._ahead.values())
        self.write = write

    def _plan(self, now: float, interval_s: float, *, is_due: bool, at_once: bool) -> ClaimWrite | None:
        if self.all_settled:
            return self._finish() if is_due else None
        is_hoard = bool(self.queue) and (self.unwanted or now - self._touched_at > _HOARD_S)
        if (is_hoard or (self._halted and not self.held)) and (shared := self._share()) is not None:
            return shared
        if self._ahead and (at_once or now - self._ahead_since >= interval_s):
            return self._detach() if self.held else self._share()
        if (is_due and self._dirty) or self._needed_until(now) > self._told_until + _EARLY_S:
            return ClaimWrite(self._flush())
        return None

    def announce(self) -> ClaimWrite | None:
        """Return the write that names a suspect message, so that a crash charges it, or no longer does."""
        if self.write is not None:
            return None
        self._running = min(self.held, default=None) if self.is_alone else None
        self._begin(self._finish() if self.all_settled else ClaimWrite(self._flush()))
        return self.write

    @property
    def _dirty(self) -> bool:
        changes = self._failures or self._done_retries or self._released or self.progress_buffer.stale
        return bool(changes) or self._acked_to != self._written_to or self.progress_buffer.is_due

    def _needed_until(self, now: float) -> float:
        """When recovery may treat the claim as stuck; without a message in hand its owner cannot hang."""
        return max((run.deadline for run in self.held.values()), default=now)

    def _flush(self, *, finished: bool = False) -> Flush:
        needed_s = max((run.deadline - ticks() for run in self.held.values()), default=self._timeout_s)
        return Flush(
            self.claim,
            self._topic_id,
            self._acked_to,
            max(needed_s, 0.0) + _SLACK_S,
            running=self._running if self._running in self.held else None,
            finished=finished,
            done_offsets=tuple(self._done_retries),
            failures=tuple(self._failures),
            blocked=tuple(self._released),
            reports=self.progress_buffer.fresh,
            reports_ended=self.progress_buffer.stale,
            was=self._written_to,
        )

    def finish(self) -> ClaimWrite | None:
        """Return the write that ends the claim, if all of its messages are settled and none is under way."""
        if self.finished or self.write is not None or not self.all_settled:
            return None
        self._begin(self._finish())
        return self.write

    def _finish(self) -> ClaimWrite:
        return ClaimWrite(self._flush(finished=True))

    def _share(self) -> ClaimWrite | None:
        """Give back what was not delivered; ``None`` if others could not take it."""
        if not self._is_range:
            self._release_queue()
            return self._finish() if self.all_settled else ClaimWrite(self._flush())
        if not self.held:
            return self._end_early()
        if self.claim.order is Order.PARTITION:
            return None
        last = max(self.held)
        below = any(message.offset < last for message in self.queue)  # put back: cut at `last`, nobody would run it
        if below or self._ahead or self.claim.order is Order.KEY:
            return self._detach()
        self.queue.clear()
        self.claim.messages = [message for message in self.claim.messages if message.offset <= last]
        return ClaimWrite(self._flush(), last)

    def _release_queue(self) -> None:
        while self.queue:
            self._end(Settlement(self.queue.popleft(), released=True, is_own=False))

    def _end_early(self) -> ClaimWrite:
        """End a range after all that has ended; what was not delivered below that is released, the rest given back."""
        top = max(self._ahead, default=self._acked_to)
        self._fill_up_to(top)
        self.queue.clear()
        if self._next == len(self.claim.messages):
            return self._finish()
        return ClaimWrite(self._flush(finished=True), self._acked_to)

    def _fill_up_to(self, top: int) -> None:
        """Count messages up to ``top`` as ended: those in the queue are released, those in hand moved elsewhere."""
        for message in self.claim.messages[self._next :]:
            if message.offset > top:
                break
            if message.offset not in self.held:
                self._note(self._ahead.pop(message.offset, Settlement(message, released=True, is_own=False)))
            self._next += 1
        self._acked_to = max(top, self._acked_to)
        if self._next == len(self.claim.messages):
            self._acked_to = self.claim.hi

    def _detach(self) -> ClaimWrite:
        self._fill_up_to(max(*self.held, *self._ahead, self._acked_to))
        self.queue.clear()
        messages = [self.held[offset].message for offset in sorted(self.held)]
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
        return ClaimWrite(self._flush(finished=True), rest=rest)

    def give_back(self) -> None:
        """Take all messages out of hand, so that the next writes give them back with no attempt charged."""
        for message in sorted((run.message for run in self.held.values()), key=lambda one: -one.offset):
            self.put_back(message)
        self._halted = True

    def send(self, channel: Channel, write: ClaimWrite, *, holds: bool) -> None:
        """Send a write, perhaps not for the first time; the caller holds ``sending``.

        Args:
            holds: the lease under which the claim was taken holds. Nobody else can have ended the claim then, so that a
                write in doubt that has ended it was our own.

        Raises:
            FenceLost: the claim has another owner.
            ConnectionLost: it is not known if it was committed.
        """
        try:
            if write.rest is not None:
                channel.detach(write.flush, write.rest)
            elif write.last is not None:
                channel.give_back(write.flush, write.last)
            else:
                channel.flush(write.flush)
        except FenceLost:
            if not write.in_doubt or not self._was_committed(channel, write, holds):
                raise

    def end_sending(self) -> None:
        """Release ``sending`` if this thread holds it: an exception from outside may come right after the acquiring."""
        with contextlib.suppress(RuntimeError):
            self.sending.release()

    def _was_committed(self, channel: Channel, write: ClaimWrite, holds: bool) -> bool:
        if write.rest is not None:
            return channel.acked_to(write.rest) is not None
        return write.flush.finished and (holds or channel.was_committed(write.flush))

    def confirm(self, write: ClaimWrite) -> None:
        """Note that a write was committed."""
        flush = write.flush
        self.progress_buffer.written(flush.reports, flush.reports_ended)
        failures, done, released = len(flush.failures), len(flush.done_offsets), len(flush.blocked)
        now = ticks()
        # No calls from here on: an exception from outside would come between, and the write be confirmed twice.
        del self._failures[:failures], self._done_retries[:done], self._released[:released]
        self.write = None
        self.unsaved -= write.covers
        self._may_be_named = flush.running is not None
        self._written_to = flush.acked_to
        self._written_at = now
        self._told_until = self._written_at + flush.timeout_s
        if write.rest is not None:
            self._go_on_with(write.rest)
        elif flush.finished:
            self.finished = self.progress_buffer.closed = True
        elif write.last is not None:
            self.claim.hi = write.last
            if self._next == len(self.claim.messages):
                self._acked_to = write.last

    def _go_on_with(self, rest: Claim) -> None:
        self.claim = rest
        self._acked_to = self._written_to = rest.acked_to
        late, self._late = self._late, []
        for settlement in late:
            self._end(settlement)
