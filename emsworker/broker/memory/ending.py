"""One write of a claim's owner: what ends, and where each message goes then.

Whatever is written first passes the fence: the claim still has this owner. Then the acked offset moves, messages that
succeeded, failed for good or were cancelled are done, the others that failed wait for their retry, and the first
message that waited behind one of these keys is due.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from emsworker.broker.memory.group import KeptClaim, KeptGroup, KeptRetry
from emsworker.broker.memory.log import KeptMessage, MessageLog
from emsworker.core.flush import Flush
from emsworker.core.ids import new_claim_id
from emsworker.core.model import Claim, ClaimSource, Failure, Isolation, Order


@dataclass
class Ending:
    """One write of a claim's owner.

    Attributes:
        dead: the messages that failed for good, and their last failures.
    """

    state: KeptGroup
    log: MessageLog
    now: datetime
    dead: list[tuple[KeptMessage, Failure]] = field(default_factory=list)

    def flush(self, flush: Flush) -> None:
        """Write the progress of a claim down.

        Raises:
            FenceLost: the claim has another owner; nothing was written.
        """
        claim = flush.claim
        self.state.fence(claim).acked_to = flush.acked_to
        if flush.finished:
            del self.state.claims[claim.partition, claim.lo]
        ended = [offset for offset, *_ in flush.done_offsets]
        ended += [failure.offset for failure in flush.failures if self._fail(flush, failure)]
        retries = [self.state.retries.pop((claim.partition, offset), None) for offset in ended]
        for offset, key in flush.blocked:
            self._block(claim, offset, key)
        keys = [retry.key for retry in retries if retry is not None] + [key for _, key in flush.blocked]
        for key in dict.fromkeys(keys):
            self.state.promote(claim.partition, key, self.now)

    def give_back(self, flush: Flush, last: int, isolation: Isolation) -> None:
        """Write progress down, keep the claim only up to ``last``, and return the rest with no attempt charged."""
        claim = flush.claim
        held = self.state.fence(claim)
        least = max(held.isolation, isolation)
        if last < claim.lo and claim.source is ClaimSource.STREAM:
            self.state.claims[claim.partition, claim.lo] = replace(held, client_id=None, isolation=least)
            return
        self._cut(held, claim, last, least)
        self.flush(flush)

    def detach(self, flush: Flush, rest: Claim) -> None:
        """Write progress down, and move the messages that still run to ``rest``, a claim beside the stream."""
        claim = flush.claim
        held = self.state.fence(claim)
        if claim.source is ClaimSource.RETRY:
            self.flush(flush)
            held.detached = True
            return
        self._cut(held, claim, flush.acked_to, claim.isolation)
        for message in rest.messages:
            retry = KeptRetry(0, self.now, message.key_bytes, rest.claim_id)
            self.state.retries[rest.partition, message.offset] = retry
        self.flush(flush)
        stored = KeptClaim(rest.claim_id, rest.hi, rest.acked_to, ClaimSource.RETRY, rest.client_id, detached=True)
        self.state.claims[rest.partition, rest.lo] = stored

    def _fail(self, flush: Flush, failure: Failure) -> bool:
        """Record a failure; return whether the message has ended."""
        place = flush.claim.partition, failure.offset
        kept = self.log.at(flush.topic_id, *place)
        if failure.retry_in_s is None:
            if failure.dead is not None and not kept.cancelled:
                self.dead.append((kept, failure))
            return True
        key = kept.new.key if flush.claim.order is Order.KEY else None
        due_at = self.now + timedelta(seconds=failure.retry_in_s)
        before = self.state.retries.get(place)
        isolation = before.isolation if before is not None else Isolation.NONE  # a suspect stays one
        if failure.suspect:
            isolation = max(isolation, flush.claim.isolation, Isolation.ALONE)
        self.state.retries[place] = KeptRetry(failure.attempt, due_at, key, isolation=isolation)
        return False

    def _block(self, claim: Claim, offset: int, key: bytes | None) -> None:
        """Let a message that was not run wait: for an earlier one of its key, or for nothing if it has none."""
        place = claim.partition, offset
        if claim.source is ClaimSource.RETRY:
            self.state.retries[place].claim_id = None
        else:
            self.state.retries[place] = KeptRetry(0, self.now if key is None else None, key)

    def _cut(self, held: KeptClaim, claim: Claim, last: int, isolation: Isolation) -> None:
        """Take what lies above ``last`` out of a claim."""
        if claim.source is ClaimSource.RETRY:
            for (number, offset), retry in self.state.retries.items():
                if number == claim.partition and offset > last and retry.claim_id == claim.claim_id:
                    retry.claim_id = None
        elif last < held.hi:
            rest = replace(held, claim_id=new_claim_id(), acked_to=last, client_id=None, isolation=isolation)
            self.state.claims[claim.partition, last + 1] = rest
        held.hi = last
