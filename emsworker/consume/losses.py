"""Connections lost during transactional handlers, and the rules by which a message is charged for the loss.

A handler whose session is silent for longer than a timeout of the server, or of a proxy between, loses its connection
every time. One loss charges no message, nor does a second. A message whose owners were lost before runs alone
(:class:`Isolation`); if it loses its connection then, it is charged by its own task's options, so it comes to an end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from emsworker.core.counted import counted
from emsworker.core.errors import ConnectionLost, ConnectionLostInHandler
from emsworker.core.model import Claim, Message
from emsworker.core.process import forks
from emsworker.core.servers import ServerRun
from emsworker.tasks.options import HandlerOptions

_REMEMBERED = 10_000
_UPTIME_S = 1.0  # servers count whole seconds, between two times truncated to seconds


@dataclass(frozen=True)
class LostRun:
    """A run of a transactional handler during which the connection was lost.

    Args:
        messages: one, unless it was a batch.
        began: when it began, in :func:`ticks`; ran_s: the seconds that it had run when the loss was noticed.
        server: the server that answered before it began; read only for a message that runs alone.
        cut: false if the server could not serve: it was full, read-only, shutting down, or not to be reached.
        why: the error.
    """

    claim: Claim
    messages: Sequence[Message]
    options: HandlerOptions
    began: float
    ran_s: float
    server: ServerRun | None
    cut: bool
    why: str

    @property
    def alone(self) -> bool:
        """True if the message runs alone, because earlier runs of it were lost."""
        return self.claim.isolation.alone


class LostUnderHandler(ConnectionLost):
    """The thread's own connection was lost while a transactional handler ran."""

    def __init__(self, run: LostRun, cause: BaseException | None) -> None:
        self.run = run
        super().__init__(str(cause))


class Losses:
    """Counts, in one process, how many times in a row the connection was lost under each message; thread-safe."""

    def __init__(self) -> None:
        self._mutex = forks.Lock()
        self._counts: OrderedDict[tuple[int, int, int], int] = OrderedDict()

    def note(self, run: LostRun) -> int:
        """Count a loss; return the number of losses in a row."""
        with self._mutex:
            for message in run.messages:
                place = _place(run.claim, message)
                self._counts[place] = self._counts.pop(place, 0) + 1
            while len(self._counts) > _REMEMBERED:  # other processes may have run the rest
                self._counts.popitem(last=False)
            return self._counts[_place(run.claim, run.messages[0])]

    def forget(self, claim: Claim) -> None:
        """Reset the counts of a claim's messages, which ended without a loss."""
        if self._counts:  # rarely true
            with self._mutex:
                for message in claim.messages:
                    self._counts.pop(_place(claim, message), None)


def _place(claim: Claim, message: Message) -> tuple[int, int, int]:
    return claim.group_id, claim.partition, message.offset


def judge(
    run: LostRun, times: int, server: ServerRun, since_s: float, committed: bool | None
) -> ConnectionLostInHandler | str:
    """Decide whether a lost run is charged.

    Args:
        times: number of losses in a row, as far as this process knows.
        server: the server that answers now, over a new connection; since_s: seconds since the run began.
        committed: its transaction was committed; ``None`` if its worker no longer owns the claim.

    Returns:
        the error to charge the message with, or the reason why no attempt is charged.
    """
    if committed is None:
        return "its claim has another owner by now"
    if committed:
        return "its transaction had been committed"
    if not run.alone:
        return "one loss may be anybody's fault; if it comes again, the message runs alone and is charged"
    if not run.cut:
        return "the server could not serve"
    if run.server is None or server.identity != run.server.identity:
        return "another server answers now"
    if server.up_s < since_s + _UPTIME_S:
        return "the server has been restarted meanwhile"
    again = "" if times == 1 else f" {counted(times, 'time')} in a row"
    return ConnectionLostInHandler(
        f"the connection to the database was lost{again} while it ran, this time after {run.ran_s:.1f} s "
        f"({run.why:.300}); if it is silent for so long, look at the server's wait_timeout and "
        "idle_transaction_timeout, and at the idle timeout of a proxy between"
    )
