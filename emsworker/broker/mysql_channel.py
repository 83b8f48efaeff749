"""A channel over a session of the store."""

from __future__ import annotations

from emsworker.core.model import Claim, Isolation, Order
from emsworker.store.engine.session import Session
from emsworker.store.groups import claims, detaching, ordered, progress, recalling
from emsworker.store.groups.claims import Claimant, NothingClaimed
from emsworker.store.groups.progress import Flush


class MysqlChannel:
    """The way out of the stream in MySQL; see :class:`emsworker.broker.channel.Channel`.

    Args:
        session: used by one thread at a time.
    """

    def __init__(self, session: Session) -> None:
        self.session = session

    def take_range(
        self, claimant: Claimant, partition: int, before: Flush | None = None, *, wait: bool = False
    ) -> Claim | NothingClaimed:
        """Claim the next messages of a partition, in its order if the group has one."""
        if claimant.group.order is not Order.NONE:
            return ordered.take_next(self.session, claimant, partition, before)
        return claims.take_range(self.session, claimant, partition, before, wait=wait)

    def take_waiting(
        self, claimant: Claimant, before: Flush | None = None, *, from_partition: int = 0
    ) -> Claim | NothingClaimed:
        """Adopt a claim that its owner gave back or lost."""
        return claims.take_waiting(self.session, claimant, before, from_partition=from_partition)

    def take_retries(self, claimant: Claimant, before: Flush | None = None) -> Claim | NothingClaimed:
        """Claim due retries of one partition."""
        return claims.take_retries(self.session, claimant, before)

    def flush(self, flush: Flush) -> None:
        """Write the progress of a claim down."""
        progress.flush(self.session, flush)

    def give_back(self, flush: Flush, last: int, isolation: Isolation = Isolation.NONE) -> None:
        """Write progress down, keep the claim only up to ``last``, and return the rest."""
        progress.give_back(self.session, flush, last, isolation)

    def detach(self, flush: Flush, rest: Claim) -> None:
        """Write progress down, and move the messages that still run to a claim beside the stream."""
        detaching.detach(self.session, flush, rest)

    def acked_to(self, claim: Claim) -> int | None:
        """Read the recorded acked offset of a claim; ``None`` if its owner no longer has it."""
        return progress.acked_to(self.session, claim)

    def recall(self, claimant: Claimant) -> bool:
        """Give back the claim that a packet took whose answer was lost."""
        return recalling.recall(self.session, claimant)

    def close(self) -> None:
        """Close the session."""
        self.session.close()
