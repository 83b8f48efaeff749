"""A claim whose messages a program pulls, and ends in any order; its :class:`ClaimProgress` decides what is written."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from emsworker.consume.claim_progress import ClaimProgress, ClaimWrite, Ended
from emsworker.consume.flusher import HeldClaim
from emsworker.core.errors import EmsError, FenceLost
from emsworker.core.model import Claim, Message, Order
from emsworker.core.process.clock import ticks
from emsworker.core.process.forks import Mutex
from emsworker.core.run import ProgressReport, Run, check_span

_SLACK_S = 2.0  # the owner retries a message that is over its time; only if it cannot, recovery does
_EARLY_S = 0.25
_HOARD_S = 1.0


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
        with self._lock:
            if self.ended is not None:
                raise self.ended
            self.pulled.progress.reports.add(report)


class PulledClaim(HeldClaim):
    """A claim in hand; the caller of all methods holds ``lock``.

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
        super().__init__(ClaimProgress(claim, topic_id, timeout_s), lock)
        self.hold_s = hold_s
        self.term = term
        self.unwanted = False  # what was not delivered goes back at once
        self.owner: object = None  # the consumer's messages in hand
        self.held: dict[int, PulledRun] = {}
        self.queue = deque(claim.messages)
        self.is_alone = False  # the process is to be that of its suspect message alone
        self._waits_since: float | None = None  # for the others in hand, before that
        self._timeout_s = timeout_s
        self._ahead_since = 0.0
        self._touched_at = ticks()

    @property
    def write(self) -> ClaimWrite | None:
        """The write that is under way, or in doubt."""
        return self.progress.write

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
        message.run = run = PulledRun(self, message, self.hold_s, self.lock)
        self.queue.remove(message)
        self.held[message.offset] = run
        self._touched_at = ticks()
        return True

    def _next_message(self) -> Message | None:
        if self.closed or self.unwanted or (self.write is not None and self.write.rest is not None):
            return None
        if self.claim.order is Order.PARTITION:
            return None if self.progress.halted or self.held or not self.queue else self.queue[0]
        if self.claim.order is Order.NONE:
            return self.queue[0] if self.queue else None
        busy = {run.message.key_bytes for run in self.held.values()}
        for message in list(self.queue):
            if message.key_bytes is None:
                return message
            if self.progress.waits(message):
                self.queue.remove(message)
                self._end(Ended.untouched(message))
            elif message.key_bytes not in busy:
                return message
        return None

    def put_back(self, message: Message) -> None:
        """Return a message that did not reach the program to the head of the queue."""
        was_held = self.held.pop(message.offset, None) is not None
        message.run = Run()
        if self.progress.named == message.offset:
            self.progress.named = None
        if was_held or message not in self.queue:  # an exception may have come while it was taken
            self.queue.appendleft(message)

    # -- ends ----------------------------------------------------------------------------------------------------------

    def settle(self, one: Ended, ended: EmsError) -> None:
        """End a message in hand; ``ended`` is raised if it is ended again."""
        self.held.pop(one.message.offset).ended = ended
        self._touched_at = ticks()
        self._end(one)

    def _end(self, one: Ended) -> None:
        if not self.progress.is_ahead:
            self._ahead_since = ticks()
        self.progress.end([one])

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
        self.progress.close()

    # -- writing down --------------------------------------------------------------------------------------------------

    def plan(self, interval_s: float, *, at_once: bool = False) -> ClaimWrite | None:
        """Return the write that is due, which is under way from then on; ``None`` if nothing is due.

        Args:
            interval_s: seconds for which ends may wait, so that one write holds many.
            at_once: they do not wait.
        """
        if self.write is None and not self.closed:
            now = ticks()
            self._plan(now, interval_s, at_once or now - self.progress.written_at >= interval_s, at_once)
        return self.write

    def _plan(self, now: float, interval_s: float, is_due: bool, at_once: bool) -> ClaimWrite | None:
        progress = self.progress
        if self.all_settled:
            return progress.finish(self._needed_s) if is_due else None
        is_hoard = bool(self.queue) and (self.unwanted or now - self._touched_at > _HOARD_S)
        if (is_hoard or (progress.halted and not self.held)) and (shared := self._share()) is not None:
            return shared
        if progress.is_ahead and (at_once or now - self._ahead_since >= interval_s):
            return self._share()
        needed_until = max((run.deadline for run in self.held.values()), default=now)
        if (is_due and progress.is_dirty(now)) or needed_until > progress.written_at + progress.told_s + _EARLY_S:
            return progress.save(self._needed_s)
        return None

    def _share(self) -> ClaimWrite | None:
        """Give back what was not delivered; ``None`` if others could not take it."""
        write = self.progress.give_back(self.held, self._needed_s)
        if write is not None:
            self.queue.clear()
        return write

    @property
    def _needed_s(self) -> float:
        """Seconds before recovery may treat the claim as stuck; without a message in hand its owner cannot hang."""
        return max(0.0, max((run.deadline - ticks() for run in self.held.values()), default=self._timeout_s)) + _SLACK_S

    def announce(self) -> ClaimWrite | None:
        """Return the write that names a suspect message, so that a crash charges it, or no longer does."""
        if self.write is not None:
            return None
        self.progress.named = min(self.held, default=None) if self.is_alone else None
        return self.finish() or self.progress.save(self._needed_s)

    def finish(self) -> ClaimWrite | None:
        """Return the write that ends the claim, if all of its messages are settled and none is under way."""
        if self.closed or self.write is not None or not self.all_settled:
            return None
        return self.progress.finish(self._needed_s)

    def give_back(self) -> None:
        """Take all messages out of hand, so that the next writes give them back with no attempt charged."""
        for message in sorted((run.message for run in self.held.values()), key=lambda one: -one.offset):
            self.put_back(message)
        self.progress.halted = True

    def confirm(self, write: ClaimWrite) -> None:
        """Note that a write was committed."""
        self.progress.confirm(write, ticks())
