"""A channel over a session of the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from emsworker.broker.channel import Send, TransactionLost
from emsworker.core.errors import Conflict, ConnectionLost, TransactionEnded, TransactionGone
from emsworker.core.flush import Flush
from emsworker.core.model import Claim, Isolation, Notice, Order
from emsworker.core.servers import ServerRun
from emsworker.core.work import Claimant, NothingClaimed, PollAnswer
from emsworker.publish.transaction import Transaction
from emsworker.store.engine.errors import is_cut, translate
from emsworker.store.engine.schema import server_run
from emsworker.store.engine.session import Session
from emsworker.store.groups import claims, detaching, fair, notices, ordered, progress, recalling

T = TypeVar("T")


class MysqlChannel:
    """The way out of the stream in MySQL; see :class:`emsworker.broker.channel.Channel`.

    Args:
        session: used by one thread at a time.
        move: moves what an extension has sent with an ack.
    """

    def __init__(self, session: Session, move: Callable[[Session], object] = lambda session: None) -> None:
        self.session = session
        self._move = move

    def find_work(self, group_ids: Sequence[int]) -> PollAnswer:
        """Find, without any lock, the work that is available to groups."""
        return claims.find_work(self.session, group_ids)

    def take_range(
        self,
        claimant: Claimant,
        partition: int,
        before: Sequence[Flush] = (),
        *,
        wait: bool = False,
        announced: bool = False,
    ) -> Claim | NothingClaimed:
        """Claim the next messages of a partition, in its order if the group has one."""
        if claimant.group.order is not Order.NONE:
            taken = ordered.take_next(self.session, claimant, partition, before)
        elif claimant.fair:
            taken = fair.take_new(self.session, claimant, partition, before, wait=wait, announced=announced)
        else:
            taken = claims.take_range(self.session, claimant, partition, before, wait=wait, announced=announced)
        self._after(*before)
        return taken

    def take_waiting(
        self, claimant: Claimant, before: Sequence[Flush] = (), *, from_partition: int = 0
    ) -> Claim | NothingClaimed:
        """Adopt a claim that its owner gave back or lost."""
        taken = claims.take_waiting(self.session, claimant, before, from_partition=from_partition)
        self._after(*before)
        return taken

    def take_retries(self, claimant: Claimant, before: Sequence[Flush] = ()) -> Claim | NothingClaimed:
        """Claim due retries of one partition."""
        take = fair.take_waiting if claimant.fair else claims.take_retries
        taken = take(self.session, claimant, before)
        self._after(*before)
        return taken

    def flush(self, flush: Flush) -> None:
        """Write the progress of a claim down."""
        progress.flush(self.session, flush)
        self._after(flush)

    def give_back(self, flush: Flush, last: int, isolation: Isolation = Isolation.NONE) -> None:
        """Write progress down, keep the claim only up to ``last``, and return the rest."""
        progress.give_back(self.session, flush, last, isolation)
        self._after(flush)

    def detach(self, flush: Flush, rest: Claim) -> None:
        """Write progress down, and move the messages that still run to a claim beside the stream."""
        detaching.detach(self.session, flush, rest)
        self._after(flush)

    def _after(self, *flushes: Flush) -> None:
        """Move what an extension has sent with acks that are committed now; if that fails, the beat does it."""
        if any(flush.is_followed for flush in flushes):
            self._move(self.session)

    def recall(self, claimant: Claimant) -> bool:
        """Give back the claim that a packet took whose answer was lost."""
        return recalling.recall(self.session, claimant)

    def acked_to(self, claim: Claim) -> int | None:
        """Read the recorded acked offset of a claim; ``None`` if its owner no longer has it."""
        return progress.acked_to(self.session, claim)

    def was_committed(self, flush: Flush) -> bool:
        """Return whether a flush whose answer was lost has finished its claim."""
        return progress.was_committed(self.session, flush)

    def take_notices(self, group_ids: Sequence[int], most: int) -> list[Notice]:
        """Take notices of dead letters of processes that died."""
        return notices.take_notices(self.session, group_ids, most)

    def server_run(self) -> ServerRun:
        """Read which server answers, and since when it runs."""
        return server_run(self.session)

    # -- transactions --------------------------------------------------------------------------------------------------

    def transact(
        self, call: Callable[[Transaction], T], commit: Callable[[T, Send], None], is_cut_short: Callable[[], bool]
    ) -> T:
        """Call a handler in a lent transaction, and commit it with the progress of its claim."""
        sent: list[Flush] = []

        def attempt() -> T:
            sent.clear()
            returned = self._call(call, is_cut_short)
            self._commit(partial(commit, returned), sent)
            return returned

        returned = self.session.retry_on_conflict(attempt)
        self._after(*sent)
        return returned

    def _call(self, call: Callable[[Transaction], T], is_cut_short: Callable[[], bool]) -> T:
        """Call the handler; an error with which the server rolled it back is raised even if the handler caught it."""
        session = self.session
        try:
            with session.lend() as connection:
                returned = call(Transaction(connection))
        except BaseException as error:
            if is_cut_short():
                session.drop()  # it may have cut a packet in two; the server rolls back
                raise
            meaning = session.rolled_back or translate(error)
            if isinstance(meaning, ConnectionLost) and not session.alive:
                raise _lost(meaning) from meaning  # ours, not that of a service which the handler calls
            if (refused := session.refused) is not None:  # whatever the handler made of it
                session.drop()
                raise _lost(refused) from error
            if isinstance(meaning, Conflict):
                session.rollback()
                raise meaning from error
            raise
        if not session.alive:
            lost = ConnectionLost("the connection was lost in the handler, which ignored the error")
            raise _lost(lost) from lost
        if (conflict := session.rolled_back) is not None:
            session.rollback()
            raise conflict
        return returned

    def _commit(self, commit: Callable[[Send], None], sent: list[Flush]) -> None:
        def send(flush: Flush) -> None:
            progress.commit_with(self.session, flush)
            sent.append(flush)

        try:
            commit(send)
        except ConnectionLost as error:
            raise _lost(error) from error
        except TransactionGone:
            raise TransactionEnded(
                "the handler ended its transaction (COMMIT, ROLLBACK or DDL): exactly-once is void for this message"
            ) from None

    def close(self) -> None:
        """Close the session."""
        self.session.close()


def _lost(error: ConnectionLost) -> TransactionLost:
    return TransactionLost(cut=is_cut(error))
