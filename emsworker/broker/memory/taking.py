"""The choice of the messages that a claim takes.

Without an order three kinds of work are claimed apart: the next messages at the cursor, a claim that its owner gave
back, and due retries of one partition, the longest due first. In an ordered group a partition has one claim at a time,
and what failed goes before what is new:

- by partition, the oldest retry is the next message of the partition, and nothing passes it;
- by key, due retries come with what waits behind them for the same key; a message at the cursor whose key is waiting is
  claimed, but blocked.

A retry that is suspected of killing its process is claimed alone, and only by a client that takes suspects; so is what
was given back with such an isolation, one message after another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from emsworker.broker.memory.group import KeptClaim, KeptGroup, KeptRetry, Place
from emsworker.broker.memory.lanes import enter_lanes, next_in_lanes
from emsworker.broker.memory.log import MessageLog
from emsworker.core.ids import new_claim_id
from emsworker.core.model import Claim, ClaimSource, Isolation, Order
from emsworker.core.work import FEW, Claimant, NothingClaimed

_NEAR = 4  # batches


@dataclass(frozen=True)
class Taking:
    """One attempt of a client to claim work of a group."""

    claimant: Claimant
    state: KeptGroup
    log: MessageLog
    now: datetime

    def range(self, partition: int) -> Claim | NothingClaimed:
        """Claim the next messages of a partition, in its order if the group has one."""
        if self.claimant.fair:
            return self._from_lanes()
        if self.state.group.order is Order.NONE:
            return self._fresh(partition)
        return NothingClaimed.EMPTY if self.state.is_owned(partition) else self._in_order(partition)

    def waiting(self, from_partition: int) -> Claim | NothingClaimed:
        """Adopt a claim that its owner gave back, of the first such partition from this one on."""
        return self._adopt(sorted({number for number, _ in self.state.claims if number >= from_partition}))

    def retries(self) -> Claim | NothingClaimed:
        """Claim due retries of one partition: that of the retry which has been due longest."""
        if self.claimant.fair:
            return self._from_lanes()
        due = self._due(self.state.retries)
        return self._retries(due[0][0], self._together(due)) if due else NothingClaimed.EMPTY

    def _from_lanes(self) -> Claim | NothingClaimed:
        """Claim the next message of all keys of a fair group, whatever was new."""
        enter_lanes(self.state, self.log, self.claimant.fair, self.now)
        place = next_in_lanes(self.state, self.claimant.most_isolation)
        return NothingClaimed.EMPTY if place is None else self._retries(place[0], [place[1]])

    def _due(self, places: Iterable[Place]) -> list[Place]:
        """Return those of some places whose retries may be claimed, the longest due first."""
        retries = self.state.retries
        return sorted((one for one in places if self._may(retries[one])), key=lambda one: (retries[one].due_at, one))

    def _together(self, due: Sequence[Place]) -> list[int]:
        """Return the offsets of retries that are claimed with the first of them; a suspect is claimed alone."""
        first = due[0]
        if self.state.retries[first].isolation:
            return [first[1]]
        same = [one for one in due if one[0] == first[0] and not self.state.retries[one].isolation]
        return [offset for _, offset in same[: self.claimant.batch]]

    # -- in order ------------------------------------------------------------------------------------------------------

    def _in_order(self, partition: int) -> Claim | NothingClaimed:
        waiting = self.state.waiting_in(partition)
        if self.state.group.order is Order.PARTITION and waiting:
            first = self.state.retries[partition, waiting[0]]
            return self._retries(partition, waiting[:1] if self._may(first) else [])
        if due := self._due((partition, offset) for offset in waiting):
            return self._retries(partition, self._with_those_behind(partition, self._together(due)))
        given_back = [
            held
            for (number, _), held in sorted(self.state.claims.items())
            if number == partition and not held.client_id
        ]
        if given_back and given_back[0].isolation > self.claimant.most_isolation:
            return NothingClaimed.EMPTY
        claim = self._adopt([partition])
        if not isinstance(claim, Claim):
            claim = self._fresh(partition)
        if isinstance(claim, Claim) and claim.order is Order.KEY:
            claim.blocked_keys = self._blocked(claim)
        return claim

    def _with_those_behind(self, partition: int, taken: Sequence[int]) -> list[int]:
        """Add what waits behind these for their keys, if it is near: a chain is not run one message at a time."""
        retries = {offset: self.state.retries[partition, offset] for offset in self.state.waiting_in(partition)}
        first: dict[bytes | None, int] = {}
        for offset in sorted(taken):
            if retries[offset].key is not None and not retries[offset].isolation:
                first.setdefault(retries[offset].key, offset)
        near = min(taken) + _NEAR * self.claimant.batch
        behind = (
            offset
            for offset, one in retries.items()
            if first.get(one.key, near) < offset < near and one.claim_id is None and not one.isolation
        )
        return sorted({*taken, *behind})

    def _blocked(self, claim: Claim) -> frozenset[bytes]:
        waiting = {retry.key for (number, _), retry in self.state.retries.items() if number == claim.partition}
        return frozenset(key for message in claim.messages if (key := message.key_bytes) and key in waiting)

    # -- the three kinds of work ---------------------------------------------------------------------------------------

    def _fresh(self, partition: int) -> Claim | NothingClaimed:
        lo = self.state.cursors.get(partition, 1)
        hi = min(self.log.end(self.claimant.topic.id, partition), lo + self.claimant.batch - 1)
        if hi < lo:
            return NothingClaimed.EMPTY
        self.state.cursors[partition] = hi + 1
        return self._range(partition, lo, hi, Isolation.NONE)

    def _adopt(self, partitions: Sequence[int]) -> Claim | NothingClaimed:
        for partition in partitions:
            for number, lo in sorted(self.state.claims):
                held = self.state.claims[number, lo]
                if number == partition and held.client_id is None and held.isolation <= self.claimant.most_isolation:
                    hi = min(held.hi, lo + self._most(held.isolation) - 1)
                    if hi < held.hi:
                        rest = replace(held, claim_id=new_claim_id(), acked_to=hi)
                        self.state.claims[partition, hi + 1] = rest
                    return self._range(partition, lo, hi, held.isolation)
        return NothingClaimed.EMPTY

    def _most(self, isolation: Isolation) -> int:
        """Return how many messages a claim may have: the fewer, the more processes have died in it."""
        if isolation.alone:
            return 1
        return min(self.claimant.batch, FEW) if isolation is Isolation.FEW else self.claimant.batch

    def _range(self, partition: int, lo: int, hi: int, isolation: Isolation) -> Claim:
        claim = self._hold(partition, lo, hi, ClaimSource.STREAM, isolation)
        for offset in range(lo, hi + 1):
            kept = self.log.at(self.claimant.topic.id, partition, offset)
            if not kept.cancelled and self.state.wants(kept):
                claim.messages.append(kept.read(self.claimant.decoder, 1))
        return claim

    def _retries(self, partition: int, offsets: Sequence[int]) -> Claim | NothingClaimed:
        if not offsets:
            return NothingClaimed.EMPTY
        offsets = sorted(offsets)
        retries = {offset: self.state.retries[partition, offset] for offset in offsets}
        isolation = max(retry.isolation for retry in retries.values())
        claim = self._hold(partition, offsets[0], offsets[-1], ClaimSource.RETRY, isolation)
        for offset, retry in retries.items():
            retry.claim_id = claim.claim_id
            kept = self.log.at(self.claimant.topic.id, partition, offset)
            if kept.cancelled:
                claim.gone.append((offset, retry.attempt + 1))
            else:
                claim.messages.append(kept.read(self.claimant.decoder, retry.attempt + 1))
            claim.keys[offset] = retry.key
        return claim

    def _may(self, retry: KeptRetry) -> bool:
        return retry.is_due(self.now) and retry.isolation <= self.claimant.most_isolation

    def _hold(self, partition: int, lo: int, hi: int, source: ClaimSource, isolation: Isolation) -> Claim:
        who = self.claimant
        self.state.claims[partition, lo] = KeptClaim(who.claim_id, hi, lo - 1, source, who.client_id, isolation)
        return Claim(
            *(who.group.id, partition, lo, hi, lo - 1, who.claim_id, source, isolation, who.client_id),
            order=who.group.order,
            taken_at=self.now.replace(tzinfo=None).isoformat(),
            topic=who.topic.name,
            group=who.group.name,
            ends={(to, one): self.log.end(to, one) + 1 for to in who.broadcasts for one in self.log.partitions(to)},
        )
