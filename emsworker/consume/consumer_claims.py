"""The claims that a consumer has in hand, as its flusher sees them."""

from __future__ import annotations

from collections.abc import Callable

from emsworker.broker.channel import Channel
from emsworker.consume.claim_progress import ClaimWrite, Ended
from emsworker.consume.claiming import Claiming
from emsworker.consume.flusher import HeldClaims
from emsworker.consume.in_hand import InHand
from emsworker.consume.pulled import PulledClaim, PulledRun
from emsworker.core.errors import FenceLost, TimeLimitExceeded

# After that long without a claim nothing is about to carry the ends of what is settled, and the next claim is faster
# without them.
_QUIET_S = 0.003


class ConsumerClaims(HeldClaims[PulledClaim]):
    """The claims of a consumer.

    Args:
        in_hand: the claims.
        claiming: knows the lease, and is told of partitions that are free again.
        time_out: returns the end of a message that has timed out.
    """

    def __init__(
        self, in_hand: InHand, claiming: Claiming, time_out: Callable[[PulledRun, TimeLimitExceeded], Ended]
    ) -> None:
        self._in_hand, self._claiming, self._time_out = in_hand, claiming, time_out

    def wait(self, seconds: float) -> bool:
        """Wait until all is settled, for at most this many seconds; return whether it is."""
        return self._in_hand.wait_until_settled(seconds, _QUIET_S)

    def claims(self) -> list[PulledClaim]:
        """Return those that are not finished."""
        return self._in_hand.claims()

    def holds(self, claim: PulledClaim) -> bool:
        """Return whether the lease under which a claim was taken still holds."""
        return self._claiming.holds(claim)

    def confirm(self, claim: PulledClaim, write: ClaimWrite) -> None:
        """Note that a write was committed; more work of its partition may be there."""
        self._in_hand.confirm([(claim, write)])
        self._claiming.note_written(claim)

    def lose(self, claim: PulledClaim, error: FenceLost) -> None:
        """Note that a claim has another owner."""
        self._in_hand.lose(claim, error)
        self._claiming.note_written(claim)

    def enforce_limits(self, channel: Channel) -> None:
        """Retry messages that were in hand for too long."""
        self._in_hand.time_out(self._time_out)

    def after_writes(self) -> None:
        """Give the slot of a limited group up, if nothing is in hand."""
        self._claiming.leave_slot(self._in_hand)
