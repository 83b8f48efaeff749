"""A group in memory: where every offset of a partition is for it.

- ahead: at the cursor or above it, nobody has claimed it;
- claimed: above the acked offset of a claim, which a client owns, or which waits for an owner;
- waiting: it has a retry, which is due at a time, or is claimed, or waits for an earlier message of its key;
- done: below the cursor, and none of the others; if it failed for good, it is a dead letter as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from emsworker.broker.memory.log import KeptMessage, MessageLog
from emsworker.core.codec import decode_headers
from emsworker.core.errors import FenceLost
from emsworker.core.model import Claim, ClaimSource, Group, Isolation, Order
from emsworker.core.work import AvailableWork

Place = tuple[int, int]  # partition and offset


@dataclass
class KeptRetry:
    """A message of one group that waits for its next attempt; without ``due_at``, for an earlier one of its key.

    Attributes:
        lane_at: its virtual time, in a lane of a fair group.
    """

    attempt: int
    due_at: datetime | None
    key: bytes | None
    claim_id: int | None = None
    isolation: Isolation = Isolation.NONE
    lane_at: int | None = None

    def is_due(self, now: datetime) -> bool:
        """Return whether it can be claimed."""
        return self.claim_id is None and self.due_at is not None and self.due_at <= now


@dataclass
class KeptClaim:
    """A claim as it is stored; without ``client_id`` it waits for an owner."""

    claim_id: int
    hi: int
    acked_to: int
    source: ClaimSource
    client_id: str | None
    isolation: Isolation = Isolation.NONE
    detached: bool = False


@dataclass
class KeptGroup:
    """The cursors, claims and retries of a group.

    Attributes:
        lanes_end: of a fair group: the virtual time after the last message that entered a lane.
    """

    group: Group
    cursors: dict[int, int] = field(default_factory=dict)
    claims: dict[Place, KeptClaim] = field(default_factory=dict)  # by partition and first offset
    retries: dict[Place, KeptRetry] = field(default_factory=dict)
    lanes_end: int = 0

    def wants(self, kept: KeptMessage) -> bool:
        """Return whether the group's filter lets a message through."""
        return self.group.filter.matches(kept.new.tag, decode_headers(kept.new.headers))

    def is_finished(self, kept: KeptMessage) -> bool:
        """Return whether the group will not run a message any more."""
        if not self.wants(kept):
            return True
        if kept.offset >= self.cursors.get(kept.partition, 1) or (kept.partition, kept.offset) in self.retries:
            return False
        return not any(
            partition == kept.partition and held.source is ClaimSource.STREAM and held.acked_to < kept.offset <= held.hi
            for (partition, _), held in self.claims.items()
        )

    def fence(self, claim: Claim) -> KeptClaim:
        """Return a claim as it is stored.

        Raises:
            FenceLost: it has another owner, or has ended.
        """
        held = self.claims.get((claim.partition, claim.lo))
        if held is None or held.claim_id != claim.claim_id or held.client_id != claim.client_id:
            raise FenceLost(f"the claim of {claim.place} has another owner")
        return held

    def waiting_in(self, partition: int) -> list[int]:
        """Return the offsets of a partition that have a retry, in order."""
        return sorted(offset for number, offset in self.retries if number == partition)

    def cancel(self, kept: KeptMessage, now: datetime) -> None:
        """Let a message that is cancelled wait no longer, unless it runs; what waits behind it for its key is next."""
        place = kept.partition, kept.offset
        if place in self.retries and self.retries[place].claim_id is None:
            del self.retries[place]
        if self.group.order is Order.KEY:
            self.promote(kept.partition, kept.new.key, now)

    def promote(self, partition: int, key: bytes | None, now: datetime) -> None:
        """Make the first waiting message of a key due, unless it has a due time of its own."""
        behind = [offset for offset in self.waiting_in(partition) if self.retries[partition, offset].key == key]
        if key is not None and behind:
            first = self.retries[partition, behind[0]]
            first.due_at = first.due_at or now

    def is_owned(self, partition: int) -> bool:
        """Return whether a client works on a partition; what runs beside the stream does not count."""
        held = (held for (number, _), held in self.claims.items() if number == partition)
        return any(one.client_id and not one.detached for one in held)

    def _is_held_up(self, partition: int, now: datetime) -> bool:
        """Return whether a partition that runs in order waits for the retry of a message."""
        waiting = self.waiting_in(partition) if self.group.order is Order.PARTITION else []
        return bool(waiting) and not self.retries[partition, waiting[0]].is_due(now)

    def work(self, log: MessageLog, now: datetime) -> AvailableWork:
        """Return what a client could claim now; of a group in order only the partitions."""
        waiting = [partition for (partition, _), held in self.claims.items() if held.client_id is None]
        due = {partition for (partition, _), retry in self.retries.items() if retry.is_due(now)}
        topic_id = self.group.topic_id
        fresh = {one for one in log.partitions(topic_id) if self.cursors.get(one, 1) <= log.end(topic_id, one)}
        if self.group.order is not Order.NONE:
            free = {one for one in {*fresh, *due, *waiting} if not (self.is_owned(one) or self._is_held_up(one, now))}
            return AvailableWork(partitions=tuple(sorted(free, reverse=True)))
        return AvailableWork(
            bool(waiting), bool(due), tuple(sorted(fresh, reverse=True)), highest_waiting=max(waiting, default=0)
        )
