"""The claimer: the one place where messages are claimed, for the threads of workers and for consumers; sizes of claims.

A hint that leads to nothing is forgotten here, or held while what is there may not be taken.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from emsworker.broker.channel import Channel
from emsworker.consume.hints import Hint
from emsworker.consume.poller import Poller
from emsworker.core.codec import Decoder
from emsworker.core.flush import Flush
from emsworker.core.model import Claim, Group, Isolation, Order, Topic
from emsworker.core.partitioner import partition_number
from emsworker.core.work import Claimant, NothingClaimed

_NO_TURN_S = 0.2  # between looks for what this process may not take now


@dataclass
class BatchSizer:
    """Claim size that adapts to the run time of a group's messages: one for slow messages, hundreds for fast ones.

    Args:
        target_s: seconds of work that a claim should hold.
        largest: the maximum number of messages in a claim.
    """

    target_s: float
    largest: int
    size: int = 1
    _average_s: float = 0.0

    def record(self, messages: int, seconds: float) -> None:
        """Record the run time of a finished claim; the size grows at most eightfold at a time and falls at once."""
        if messages <= 0:
            return
        sample = seconds / messages
        # A rise takes effect at once: a large claim keeps work from other clients, a small one only costs a commit.
        self._average_s = max(sample, 0.7 * self._average_s + 0.3 * sample)
        fitting = int(self.target_s / max(self._average_s, 1e-7))
        self.size = max(1, min(self.largest, fitting, self.size * 8))


class Claimer:
    """Takes claims where hints point; used by one thread at a time.

    Args:
        channel: of the thread.
        poller: gives the hints, and wakes another idle thread if there is more.
        batch_bytes: the most bytes of a claim.
        decoder: of its messages.

    Attributes:
        was_busy: another client held the cursor that the last hint pointed to; the next one is waited for.
    """

    def __init__(self, channel: Channel, poller: Poller, batch_bytes: int, decoder: Decoder) -> None:
        self._channel, self._poller = channel, poller
        self._batch_bytes, self._decoder = batch_bytes, decoder
        self.was_busy = False

    def claimant(
        self,
        hint: Hint,
        topic: Topic,
        group: Group,
        client_id: str,
        size: int,
        most_isolation: Isolation = Isolation.LAST,
        broadcasts: Collection[int] = (),
        fair: str = "",
        per_key: bool = False,
    ) -> Claimant:
        """Return a claimant of at most ``size`` messages where a hint points; see :class:`Claimant`."""
        most_bytes, decoder = self._batch_bytes, self._decoder
        permits = hint.limited, hint.held
        who = topic, group, client_id, size, most_bytes, decoder
        return Claimant(*who, *permits, most_isolation, broadcasts, fair, per_key)

    def take(self, hint: Hint, claimant: Claimant, before: Sequence[Flush]) -> Claim | None:
        """Follow a hint.

        Args:
            claimant: made for this hint.
            before: ends of earlier claims, recorded in the same transaction.

        Raises:
            FenceLost: one of the earlier claims has another owner by now; nothing was claimed, and none was recorded.
            StoreError: a claim may have been taken that is not known here.
        """
        claim = self._ask(hint, claimant, before)
        if not isinstance(claim, Claim):
            held = claimant.per_key and hint.kind == "retries"  # what waits there may be of keys that have no room
            most_isolation = Isolation.NONE if held else claimant.most_isolation
            self.leave(hint, is_busy=claim is NothingClaimed.BUSY, most_isolation=most_isolation)
            return None
        self.was_busy = False
        if claim.hi - claim.lo + 1 >= claimant.batch:
            self._poller.more()
        return claim

    def leave(self, hint: Hint, *, is_busy: bool, most_isolation: Isolation = Isolation.LAST) -> None:
        """Note that nothing was claimed where a hint points, perhaps because another client is at work there."""
        self.was_busy = is_busy and hint.kind == "stream" and not hint.exclusive
        if self.was_busy:
            return
        if most_isolation is Isolation.LAST:
            self._poller.forget(hint)
        else:
            self._poller.hold_hint(hint, _NO_TURN_S)

    def _ask(self, hint: Hint, claimant: Claimant, before: Sequence[Flush]) -> Claim | NothingClaimed:
        if hint.kind == "stream" or claimant.group.order is not Order.NONE:
            wait = self.was_busy or self._poller.alone
            return self._channel.take_range(claimant, hint.partition, before, wait=wait, announced=hint.announced)
        if hint.kind == "waiting":
            return self._channel.take_waiting(claimant, before, from_partition=partition_number(hint.level, 0))
        return self._channel.take_retries(claimant, before)
