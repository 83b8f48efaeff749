"""The claimer: the one place where messages are claimed, for the threads of workers and for consumers."""

from __future__ import annotations

from collections.abc import Sequence

from emsworker.broker.channel import Channel
from emsworker.consume.hints import Hint
from emsworker.consume.poller import Poller
from emsworker.core.flush import Flush
from emsworker.core.model import Claim, Order
from emsworker.core.partitioner import partition_number
from emsworker.core.work import Claimant, NothingClaimed


class Claimer:
    """Takes claims where hints point; used by one thread at a time.

    Args:
        channel: of the thread.
        poller: wakes another idle thread if there is more.

    Attributes:
        was_busy: another client held the cursor that the last hint pointed to; the next one is waited for.
    """

    def __init__(self, channel: Channel, poller: Poller) -> None:
        self._channel, self._poller = channel, poller
        self.was_busy = False

    def take(self, hint: Hint, claimant: Claimant, before: Sequence[Flush]) -> Claim | None:
        """Follow a hint.

        Args:
            before: ends of earlier claims, recorded in the same transaction.

        Raises:
            FenceLost: one of the earlier claims has another owner by now; nothing was claimed, and none was recorded.
            StoreError: a claim may have been taken that is not known here.
        """
        claim = self._ask(hint, claimant, before)
        self.note_busy(hint, claim is NothingClaimed.BUSY)
        if not isinstance(claim, Claim):
            return None
        if claim.hi - claim.lo + 1 >= claimant.batch:
            self._poller.more()
        return claim

    def note_busy(self, hint: Hint, is_busy: bool) -> None:
        """Note whether another client is at work where a hint points."""
        self.was_busy = is_busy and hint.kind == "stream" and not hint.exclusive

    def _ask(self, hint: Hint, claimant: Claimant, before: Sequence[Flush]) -> Claim | NothingClaimed:
        if hint.kind == "stream" or claimant.group.order is not Order.NONE:
            wait = self.was_busy or self._poller.alone
            return self._channel.take_range(claimant, hint.partition, before, wait=wait, announced=hint.announced)
        if hint.kind == "waiting":
            return self._channel.take_waiting(claimant, before, from_partition=partition_number(hint.level, 0))
        return self._channel.take_retries(claimant, before)
