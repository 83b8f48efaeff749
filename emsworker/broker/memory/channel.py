"""The channel of the stream in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar

from emsworker.broker.channel import Send
from emsworker.broker.memory.ending import Ending
from emsworker.broker.memory.group import KeptGroup
from emsworker.broker.memory.log import KeptMessage, MessageLog
from emsworker.broker.memory.results import MemoryResults
from emsworker.broker.memory.taking import Taking
from emsworker.broker.memory.transactions import Transactions
from emsworker.core.errors import EmsError, FenceLost
from emsworker.core.extension import tell
from emsworker.core.flush import Flush
from emsworker.core.model import Claim, Failure, Isolation, Notice
from emsworker.core.servers import ServerRun
from emsworker.core.work import Claimant, NothingClaimed, PollAnswer
from emsworker.publish.transaction import Transaction

T = TypeVar("T")


class MemoryStream(Protocol):
    """The stream that a channel takes from; the broker in memory is one, and knows the channel."""

    log: MessageLog
    dead: list[tuple[int, KeptMessage, Failure]]
    kept_results: MemoryResults
    transactions: Transactions
    connection: Any

    def now(self) -> datetime:
        """Return the clock, in UTC."""

    def state(self, group_id: int) -> KeptGroup:
        """Return where a group is."""


class MemoryChannel:
    """The way out of a stream in memory; see :class:`emsworker.broker.channel.Channel`."""

    def __init__(self, stream: MemoryStream) -> None:
        self._stream = stream

    # -- claiming ------------------------------------------------------------------------------------------------------

    def find_work(self, group_ids: Sequence[int]) -> PollAnswer:
        """Find the work that is available to groups."""
        stream = self._stream
        stream.log.relay()
        found = {group_id: stream.state(group_id).work(stream.log, stream.now()) for group_id in group_ids}
        return PollAnswer({group_id: work for group_id, work in found.items() if work})

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
        return self._taking(claimant, before).range(partition)

    def take_waiting(
        self, claimant: Claimant, before: Sequence[Flush] = (), *, from_partition: int = 0
    ) -> Claim | NothingClaimed:
        """Adopt a claim that its owner gave back."""
        return self._taking(claimant, before).waiting(from_partition)

    def take_retries(self, claimant: Claimant, before: Sequence[Flush] = ()) -> Claim | NothingClaimed:
        """Claim due retries of one partition."""
        return self._taking(claimant, before).retries()

    def _taking(self, claimant: Claimant, before: Sequence[Flush]) -> Taking:
        for one in before:
            self._stream.state(one.claim.group_id).fence(one.claim)  # all or none
        for one in before:
            self.flush(one)
        self._stream.log.relay()
        return Taking(claimant, self._stream.state(claimant.group.id), self._stream.log, self._stream.now())

    # -- ending --------------------------------------------------------------------------------------------------------

    def flush(self, flush: Flush) -> None:
        """Write the progress of a claim down."""
        self._end(flush, lambda ending: ending.flush(flush))

    def give_back(self, flush: Flush, last: int, isolation: Isolation = Isolation.NONE) -> None:
        """Write progress down, keep the claim only up to ``last``, and return the rest."""
        self._end(flush, lambda ending: ending.give_back(flush, last, isolation))

    def detach(self, flush: Flush, rest: Claim) -> None:
        """Write progress down, and move the messages that still run to a claim beside the stream."""
        self._end(flush, lambda ending: ending.detach(flush, rest))

    def _end(self, flush: Flush, end: Callable[[Ending], None]) -> None:
        stream = self._stream
        ending = Ending(stream.state(flush.claim.group_id), stream.log, stream.now())
        end(ending)
        stream.dead += [(flush.claim.group_id, kept, failure) for kept, failure in ending.dead]
        for row in flush.results:
            if row.is_kept:
                stream.kept_results.put(row)
        tell(flush.results, stream, in_memory=True)

    def recall(self, claimant: Claimant) -> bool:
        """Return that there is none: no answer is lost here."""
        return False

    def acked_to(self, claim: Claim) -> int | None:
        """Return the acked offset of a claim; ``None`` if its owner no longer has it."""
        with contextlib.suppress(FenceLost):
            return self._stream.state(claim.group_id).fence(claim).acked_to
        return None

    def was_committed(self, flush: Flush) -> bool:
        """Return that it was not: no answer is lost here."""
        return False

    def take_notices(self, group_ids: Sequence[int], most: int) -> list[Notice]:
        """Return nothing: no process dies here."""
        return []

    def server_run(self) -> ServerRun:
        """Return which server answers: always the same."""
        return ServerRun(("memory",), 0)

    def transact(
        self, call: Callable[[Transaction], T], commit: Callable[[T, Send], None], is_cut_short: Callable[[], bool]
    ) -> T:
        """Call a handler in a transaction on the broker's connection, and commit it with the progress of its claim."""
        connection = self._stream.connection
        if connection is None:
            raise EmsError(
                "a transactional handler needs a database: give the test a connection, app.test(connection=...), "
                "or test it on a real stream with the fixture ems_stream"
            )
        transaction = Transaction(connection)
        with self._stream.transactions.during(transaction, connection):
            returned = call(transaction)
            commit(returned, self.flush)
        return returned

    def close(self) -> None:
        """Do nothing: there is no connection."""
