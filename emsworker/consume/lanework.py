"""A claim that is worked through in lanes: its messages end out of order, and slow ones are detached."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from emsworker.consume.watch import Lane
from emsworker.consume.work import Ended, Work
from emsworker.core.ids import new_claim_id
from emsworker.core.model import Claim, ClaimSource, Message
from emsworker.core.process.clock import ticks
from emsworker.store.engine.session import Session
from emsworker.store.groups import detaching
from emsworker.store.groups.progress import Flush
from emsworker.tasks.options import HandlerOptions


class LaneEntry(Enum):
    """Action of a lane for its next message: run it, skip it because it is blocked, or stop."""

    RUN = 0
    BLOCKED = 1
    STOP = 2


class LaneWork(Work):
    """Progress of a claim in lanes, shared by the lanes, the consumer and the completer."""

    def __init__(self, claim: Claim, topic_id: int, timeout_s: float, thread_id: int) -> None:
        super().__init__(claim, topic_id, timeout_s, thread_id)
        self.lanes: list[Lane] = []
        self._size = len(claim.messages)
        self._count = 0  # of messages that have ended
        self._next = 0  # index of the lowest message that has not ended
        self._ahead: dict[int, Ended] = {}  # by offset: messages that have ended before a lower one has
        self._started: dict[int, Message] = {}
        self._late: list[Ended] | None = None  # while slow messages are being detached: what ends meanwhile
        self.detached = False  # only messages that ran too long for the others to wait are left

    def start_lanes(self, lanes: list[Lane], limits: HandlerOptions) -> bool:
        """Begin to run all messages in their lanes; return False if the claim was lost before."""
        if not self.start(self.claim.messages, limits, ticks()):
            return False
        self.lanes = lanes
        return True

    def enter(self, lane: Lane, message: Message, options: HandlerOptions) -> LaneEntry:
        """Decide what a lane does with its next message, and note that it runs if so."""
        with self.lock:
            if self.lost or self.detached or self._late is not None:
                return LaneEntry.STOP
            if self.waits(message):
                self._end(Ended(message, (), (), blocked=True))
                return LaneEntry.BLOCKED
            self._started[message.offset] = message
            lane.start(message, options)
            return LaneEntry.RUN

    def end(self, ended: Ended) -> None:
        """Record the end of a message, perhaps before lower ones; its outcome counts once all those have ended."""
        with self.lock:
            if self.lost:
                return
            if self._late is not None:
                self._late.append(ended)
            else:
                self._end(ended)

    def _end(self, ended: Ended) -> None:
        self._note_order([ended.message], ended.failures)
        self._started.pop(ended.message.offset, None)
        self._count += not ended.blocked
        self._ahead[ended.message.offset] = ended
        messages = self.claim.messages
        while not self.all_ended and messages[self._next].offset in self._ahead:
            self._settle(self._ahead.pop(messages[self._next].offset))
            self._next += 1
        self.running = None if self.all_ended else messages[self._next].offset

    @property
    def completed(self) -> int:
        """Number of messages that have ended, before and after detaching."""
        return self._count

    @property
    def started(self) -> int:
        """Number of messages that were started: all, because each lane goes on by itself."""
        return self._size

    @property
    def _needed_s(self) -> float:
        """Seconds before recovery may treat the claim as stuck; the longest extension of a lane counts for all."""
        return self.timeout_s + max((lane.extension_s for lane in self.lanes), default=0.0)

    @property
    def all_ended(self) -> bool:
        """True if every message of the claim has ended."""
        return self._next == len(self.claim.messages)

    def _leave_no_gaps(self) -> None:
        """Block messages that have not ended below ones that have, because the claim ends early; they run soon."""
        self._settle_up_to(max(self._ahead, default=0), spare=frozenset())

    def _settle_up_to(self, top: int, spare: frozenset[int]) -> None:
        for message in self.claim.messages[self._next :]:
            if message.offset <= top and message.offset not in spare:
                self._settle(self._ahead.get(message.offset) or Ended(message, (), (), blocked=True))
        self._ahead.clear()

    # -- detaching -------------------------------------------------------------------------------------------------

    def detach(self, session: Session) -> None:
        """Keep only the running messages, in a claim beside the stream, and free the partition for others.

        Ended messages are written down; messages that were not started are given back or blocked. A running message
        holds up its own key, as does one that is to be retried.

        Raises:
            FenceLost: the claim has another owner; ``lost`` is set.
        """
        with self._flushing:
            with self.lock:
                if self.lost or not self._started:
                    return
                running = [self._started[offset] for offset in sorted(self._started)]
                flush, rest = self._split(running)
                self._late = []
            try:
                detaching.detach(session, flush, rest)
            except BaseException:
                self.lost = True
                raise
            self.written(flush)
            with self.lock:
                late, self._late = self._late, None
                self._go_on_with(rest)
                for ended in late:
                    self._end(ended)

    def _split(self, running: list[Message]) -> tuple[Flush, Claim]:
        """Return the flush of the claim as it was, and a claim of the running messages; the caller holds the lock."""
        claim, spare = self.claim, frozenset(self._started)
        if claim.source is ClaimSource.RETRY:
            self._settle_up_to(claim.hi, spare)
            return self._flush(), replace(claim, messages=running)
        top = max(*spare, *self._ahead, self.acked_to)
        self._settle_up_to(top, spare)
        self.acked_to = top
        lo, hi = running[0].offset, running[-1].offset
        kept = replace(
            claim,
            lo=lo,
            hi=hi,
            acked_to=lo - 1,
            claim_id=new_claim_id(),
            source=ClaimSource.RETRY,
            messages=running,
            keys={message.offset: message.key_bytes for message in running},
        )
        return self._flush(finished=True), kept

    def _go_on_with(self, claim: Claim) -> None:
        if claim.claim_id != self.claim.claim_id:
            self.acked_to = self._written_to = claim.acked_to
        self.claim = claim
        self.last = claim.hi
        self._next = 0
        self.running = claim.messages[0].offset
        self.detached = True
