"""The way out of a broker: what a thread that consumes messages asks of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from emsworker.core.flush import Flush
from emsworker.core.model import Claim, Isolation, Notice
from emsworker.core.servers import ServerRun
from emsworker.core.work import Claimant, NothingClaimed, PollAnswer
from emsworker.publish.transaction import Transaction

T = TypeVar("T")
Send = Callable[[Flush], None]


class TransactionLost(Exception):
    """The connection was lost while a handler's transaction was open; ``__cause__`` is the loss.

    It is not known whether the transaction was committed, and by itself the loss charges no attempt.

    Args:
        cut: false if the server could not serve: it was full, read-only, shutting down, or not to be reached.
    """

    def __init__(self, cut: bool) -> None:
        self.cut = cut
        super().__init__("the connection was lost during a transactional handler")


class Channel(Protocol):
    """A connection of one consuming thread. Every write that ends a message is fenced.

    Every method may also raise :class:`ConnectionLost`, if it is not known what was committed, or :class:`Conflict`, if
    nothing was.
    """

    def find_work(self, group_ids: Sequence[int]) -> PollAnswer:
        """Find, without any lock, the work that is available to groups."""
        ...

    def take_range(
        self,
        claimant: Claimant,
        partition: int,
        before: Sequence[Flush] = (),
        *,
        wait: bool = False,
        announced: bool = False,
    ) -> Claim | NothingClaimed:
        """Claim the next messages of a partition, in its order if the group has one.

        Args:
            before: ends of earlier claims, recorded in the same transaction.
            wait: wait for another client that holds the cursor, instead of returning ``NothingClaimed.BUSY``.
            announced: first wait until what is just being published there is committed, if there is no order.

        Raises:
            FenceLost: one of the earlier claims has another owner by now; nothing was claimed, and none was recorded.
        """
        ...

    def take_waiting(
        self, claimant: Claimant, before: Sequence[Flush] = (), *, from_partition: int = 0
    ) -> Claim | NothingClaimed:
        """Adopt a claim that its owner gave back or lost; see :meth:`take_range`.

        Args:
            from_partition: only claims of this partition or a higher one.
        """
        ...

    def take_retries(self, claimant: Claimant, before: Sequence[Flush] = ()) -> Claim | NothingClaimed:
        """Claim due retries of one partition; see :meth:`take_range`."""
        ...

    def flush(self, flush: Flush) -> None:
        """Write the progress of a claim down.

        Raises:
            FenceLost: the claim has another owner by now; nothing was written.
        """
        ...

    def give_back(self, flush: Flush, last: int, isolation: Isolation = Isolation.NONE) -> None:
        """Write progress down, keep the claim only up to ``last``, and return the rest with no attempt charged.

        Args:
            isolation: the least isolation with which the rest is to be run.

        Raises:
            FenceLost: the claim has another owner by now; nothing was written.
        """
        ...

    def detach(self, flush: Flush, rest: Claim) -> None:
        """Write progress down, and move the messages that still run to ``rest``, a claim beside the stream.

        Raises:
            FenceLost: the claim has another owner by now; nothing was written.
        """
        ...

    def recall(self, claimant: Claimant) -> bool:
        """Give back, with no attempt charged, the claim that a packet took whose answer was lost.

        Returns:
            true if there was one.
        """
        ...

    def acked_to(self, claim: Claim) -> int | None:
        """Read the recorded acked offset of a claim; ``None`` if its owner no longer has it."""
        ...

    def was_committed(self, flush: Flush) -> bool:
        """Return whether a flush that finishes a claim was committed, although its answer was lost."""
        ...

    def take_notices(self, group_ids: Sequence[int], most: int) -> list[Notice]:
        """Take notices of dead letters of processes that died; no other process gets them."""
        ...

    def server_run(self) -> ServerRun:
        """Read which server answers, and since when it runs; it tells a restart from a connection that was cut."""
        ...

    def transact(
        self, call: Callable[[Transaction], T], commit: Callable[[T, Send], None], is_cut_short: Callable[[], bool]
    ) -> T:
        """Call a handler in a transaction that commits its SQL and the progress of its claim atomically.

        The channel opens a transaction, calls ``call`` with it, and calls ``commit`` with the value that ``call``
        returned. ``commit`` calls its second argument, ``send``, exactly once: that records the flush within the open
        transaction and commits both. If ``call``, ``commit`` or ``send`` raises, everything is rolled back and the
        error is raised unchanged, except for the cases below. After a conflict with another transaction, also one that
        the handler caught, everything is rolled back and done again from the start, ``call`` included.

        Args:
            call: the handler; its errors are those of the handler.
            commit: builds the flush and sends it, under the locks of the claim.
            is_cut_short: asked if ``call`` raised; true if an exception from outside may have left the connection in
                the middle of a packet, so that it must be dropped and not used for a rollback.

        Returns:
            the value that ``call`` returned in the attempt that was committed.

        Raises:
            FenceLost: the claim has another owner by now; the handler's statements were rolled back too.
            TransactionEnded: the handler has ended the transaction by itself.
            TransactionLost: the connection was lost, in the handler or in the commit.
        """
        ...

    def close(self) -> None:
        """Close the connection."""
        ...
