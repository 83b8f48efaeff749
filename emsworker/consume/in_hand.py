"""The messages that a consumer has in hand, in claims whose messages its program ends in any order.

The :class:`ClaimProgress` of each claim decides what is written.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from emsworker.consume.claim_progress import ClaimProgress, ClaimWrite, Ended
from emsworker.consume.flusher import HeldClaim
from emsworker.core.errors import EmsError, FenceLost, NotInHand, RunEnded, TimeLimitExceeded
from emsworker.core.model import Claim, Message, Order
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.process.forks import Mutex
from emsworker.core.run import ProgressReport, Run, check_span

log = logging.getLogger(__name__)

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

    def hold(self, seconds: float) -> None:
        """Let the message stay in hand for this number of seconds from now, which may be less than before.

        Raises:
            EmsError: the message is no longer in hand; the error is that of an ack.
        """
        check_span(seconds)
        with self._lock:
            if self.ended is not None:
                raise self.ended
            self.deadline = ticks() + seconds

    def report_progress(self, fraction: float | None = None, text: str = "") -> None:
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

    Attributes:
        lost: another owner has the claim, and something that was settled was not written down before.
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
        self.lost = False
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
        self._touched_at = now = ticks()  # it is not to be given back: its next owner would begin the wait again
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
        self.progress.confirm(write, ticks())


class _Room(NamedTuple):
    """The most messages in hand, and the most delivered, for which a thread waits."""

    most: int
    delivered: int


class InHand:
    """The claims of a consumer and their messages; thread-safe.

    Attributes:
        lock: held around every access to a claim.
        losses: the number of claims that another owner has taken.
        settled: the number of messages that the program has settled.
    """

    def __init__(self) -> None:
        self.lock = forks.Lock()
        self._changed = forks.Condition(self.lock)
        self._room = forks.Condition(self.lock)
        self._all_settled = forks.Condition(self.lock)
        self._waiting: list[_Room] = []
        self._claims: list[PulledClaim] = []
        self._lost: list[tuple[PulledClaim, FenceLost]] = []
        self.losses = self.settled = 0

    def __len__(self) -> int:
        """The number of messages that were claimed and not settled."""
        with self.lock:
            return self._count()

    def _count(self) -> int:
        return sum(len(pulled.held) + len(pulled.queue) for pulled in self._claims)

    def add(self, pulled: PulledClaim) -> None:
        """Add a new claim."""
        with self.lock:
            pulled.owner = self
            self._claims.append(pulled)

    def claims(self) -> list[PulledClaim]:
        """Return the claims that are not finished."""
        with self.lock:
            return list(self._claims)

    def end_sending(self) -> None:
        """Release what this thread holds of a write that an exception from outside has cut, also in its very end."""
        for pulled in self.claims():
            pulled.end_sending()

    def wait(self, seconds: float) -> None:
        """Wait until something was settled, for at most this many seconds."""
        with self._changed:
            self._changed.wait(max(0.0, seconds))

    def wait_until_settled(self, seconds: float, quiet_s: float) -> bool:
        """Wait until all that was claimed is settled, and nothing more was claimed for ``quiet_s`` seconds.

        Args:
            seconds: the most to wait for the former.

        Returns:
            False if something is not settled, or nothing was claimed.
        """
        with self.lock:
            if not self._is_settled():
                self._all_settled.wait(seconds)
            claims = list(self._claims)
            if not self._is_settled():
                return False
            self._all_settled.wait(quiet_s)
            return self._is_settled() and claims == self._claims

    def _is_settled(self) -> bool:
        return bool(self._claims) and all(pulled.all_settled for pulled in self._claims)

    def end_wait(self) -> None:
        """End the wait of :meth:`wait_until_settled`."""
        with self.lock:
            self._all_settled.notify_all()

    def wait_for_room(self, most: int, delivered: int, seconds: float) -> None:
        """Wait until at most ``most`` messages are in hand, for at most this many seconds.

        Args:
            delivered: it ends, too, if at most that many are delivered while others could be.
        """
        room = _Room(most, delivered)
        until = ticks() + seconds
        with self._room:
            self._waiting.append(room)
            try:
                while not self._is_there(room) and (left_s := until - ticks()) > 0:
                    self._room.wait(left_s)
            finally:
                self._waiting.remove(room)

    def _is_there(self, room: _Room) -> bool:
        if self._count() <= room.most:
            return True
        return self._delivered() <= room.delivered and any(pulled.has_ready for pulled in self._claims)

    def _delivered(self) -> int:
        return sum(len(pulled.held) for pulled in self._claims)

    def gather(self, delivered: int, seconds: float) -> None:
        """Wait until at most that many messages are delivered, for at most this many seconds, if others could be."""
        with self.lock:
            has_ready = any(pulled.has_ready for pulled in self._claims)
        if has_ready:
            self.wait_for_room(0, delivered, seconds)

    def may_claim(self) -> bool:
        """Return whether something that is claimed now could be delivered: no suspect is alone, or waits to be."""
        with self.lock:
            suspects = [pulled for pulled in self._claims if pulled.claim.isolation.alone]
            return not any(pulled.keeps_others_out or pulled.is_ready for pulled in suspects)

    def deliver(self, n: int, most: int, taken: list[Message], group_id: int | None = None) -> PulledClaim | None:
        """Take at most ``n`` messages that may be delivered now, if fewer than ``most`` have been.

        A suspect message has the process to itself for the time of its isolation, as behind the gate of a worker: it
        waits for those in hand, and while it is in hand, nothing else is delivered. After that it has company, and a
        crash proves nothing.

        Args:
            taken: an empty list for the messages.
            group_id: of the only group whose messages are wanted.

        Returns:
            the claim of a suspect that is alone from now on, or no longer is; that is to be written down before the
            messages reach the program.
        """
        with self.lock:
            n = min(n, most - self._delivered())
            suspects = [pulled for pulled in self._claims if pulled.claim.isolation.alone]
            if n < 1 or any(pulled.keeps_others_out for pulled in suspects):
                return None
            if (suspect := next((pulled for pulled in suspects if pulled.is_ready), None)) is not None:
                has_company = self._delivered() > 0
                if has_company and suspect.waits_for_others():
                    return None
                if group_id in (None, suspect.claim.group_id):
                    suspect.take(taken)
                    if not has_company:
                        suspect.is_alone = True
                        return suspect
            usual = [pulled for pulled in self._claims if not pulled.claim.isolation.alone]
            for pulled in usual if group_id is None else [one for one in usual if one.claim.group_id == group_id]:
                while len(taken) < n and pulled.take(taken):
                    pass
            named = next((pulled for pulled in suspects if pulled.progress.may_be_named), None) if taken else None
            if named is not None:
                named.is_alone = False
            return named

    def put_back(self, messages: Iterable[Message]) -> None:
        """Return messages that did not reach the program, to be delivered again."""
        with self.lock:
            for message in reversed(list(messages)):
                run = message.run
                if isinstance(run, PulledRun) and run.ended is None:
                    run.pulled.put_back(message)

    def settle(self, ends: Sequence[tuple[PulledRun, Ended]]) -> None:
        """End messages in hand, all or none.

        Raises:
            NotInHand, RunEnded, FenceLost: one is no longer in hand.
        """
        with self.lock:
            for run, _ in ends:
                if run.ended is not None:
                    raise run.ended
            for run, one in ends:
                run.pulled.settle(one, NotInHand(f"{run.message!r} was settled already"))
            self.settled += len(ends)
            self._note_change()
            if self._is_settled():
                self._all_settled.notify_all()

    def time_out(self, end: Callable[[PulledRun, TimeLimitExceeded], Ended]) -> None:
        """End messages whose time is over."""
        with self.lock:
            now = ticks()
            for pulled in self._claims:
                for run in pulled.overdue(now):
                    error = TimeLimitExceeded(f"was in hand for {now - run.began:.1f} s, longer than its limit")
                    log.warning("%r timed out: it %s", run.message, error)
                    pulled.settle(end(run, error), RunEnded(f"{run.message!r} has timed out, and is retried"))
                    self._note_change()

    def unwant(self, group_id: int) -> None:
        """Deliver nothing more of a group; the next writes give back what was claimed of it and not delivered."""
        with self.lock:
            for pulled in self._claims:
                pulled.unwanted |= pulled.claim.group_id == group_id

    def give_back(self) -> None:
        """Take everything out of hand, so that the next writes give it back."""
        with self.lock:
            for pulled in self._claims:
                pulled.give_back()

    def confirm(self, writes: Iterable[tuple[PulledClaim, ClaimWrite]]) -> None:
        """Note that writes were committed."""
        with self.lock:
            for pulled, write in writes:
                pulled.confirm(write)
            self._drop_finished()

    def tokens(self) -> dict[PulledClaim, int]:
        """Return the fencing tokens of the claims of which no write is under way; one that is learns it by itself."""
        with self.lock:
            return {pulled: pulled.claim.claim_id for pulled in self._claims if pulled.write is None}

    def lose_all(self, claims: Iterable[PulledClaim], tokens: Mapping[PulledClaim, int]) -> None:
        """Note that claims have other owners, unless they have been written since their tokens were looked up."""
        for pulled in claims:
            with self.lock:
                is_same = not pulled.closed and pulled.write is None and pulled.claim.claim_id == tokens[pulled]
            if is_same:
                self.lose(pulled, FenceLost(f"the claim of {pulled.claim.place} has another owner"))

    def lose(self, pulled: PulledClaim, error: FenceLost) -> None:
        """Note that a claim has another owner."""
        with self.lock:
            claim = pulled.claim
            log.warning("the claim of %s has another owner; its messages are delivered again", claim.place)
            self.losses += 1
            if pulled.progress.unsaved:
                pulled.lost = True
                self._lost.append((pulled, error))
            pulled.lose(error)
            self._drop_finished()

    def _drop_finished(self) -> None:
        self._claims = [pulled for pulled in self._claims if not pulled.closed]
        self._note_change()

    def _note_change(self) -> None:
        self._changed.notify_all()
        if any(self._is_there(room) for room in self._waiting):
            self._room.notify_all()

    def forget_lost(self, among: Collection[PulledClaim]) -> None:
        """Raise no error for claims that were lost: the program was told of each message."""
        with self.lock:
            self._lost = [one for one in self._lost if one[0] not in among]

    def raise_lost(self, among: Sequence[PulledClaim] | None = None) -> None:
        """Raise an error, once, if messages were settled and their claims were lost before that was written down.

        Args:
            among: only of these claims.
        """
        with self.lock:
            found = [error for pulled, error in self._lost if among is None or pulled in among]
            self._lost = [one for one in self._lost if one[1] not in found]
        if found:
            raise found[0]
