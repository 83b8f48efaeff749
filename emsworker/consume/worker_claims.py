"""The claims that the threads of a worker process work on."""

from __future__ import annotations

import logging

from emsworker.broker.channel import Channel
from emsworker.consume.claim_progress import ClaimWrite
from emsworker.consume.claim_run import ClaimRun
from emsworker.consume.flusher import HeldClaims
from emsworker.consume.time_limits import TimeLimits, hang_text, watches_of
from emsworker.core.errors import EmsError, FenceLost, StoreError
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.process.runnable import Trouble

log = logging.getLogger(__name__)


class WorkerClaims(HeldClaims[ClaimRun]):
    """The claim that each thread of a process works on; thread-safe.

    Args:
        limits: enforces the time limits of what runs.
    """

    def __init__(self, limits: TimeLimits) -> None:
        self._limits = limits
        self._mutex = forks.Lock()
        self._claims: dict[int, ClaimRun] = {}  # by thread id
        self._trouble = Trouble(log)

    def add(self, thread_id: int, claim_run: ClaimRun) -> None:
        """Note what a thread begins to work on."""
        with self._mutex:
            self._claims[thread_id] = claim_run

    def remove(self, thread_id: int) -> None:
        """Note that a thread works on nothing."""
        with self._mutex:
            self._claims.pop(thread_id, None)

    def claims(self) -> list[ClaimRun]:
        """Return the claims that are worked on."""
        with self._mutex:
            return list(self._claims.values())

    # -- for the flusher -----------------------------------------------------------------------------------------------

    def confirm(self, claim: ClaimRun, write: ClaimWrite) -> None:
        """Note that a write was committed."""
        claim.confirm(write)

    def lose(self, claim: ClaimRun, error: FenceLost) -> None:
        """Note that a claim has another owner."""
        claim.lose()
        log.warning("the claim of %s is run elsewhere by now", claim.claim.place)

    def enforce_limits(self, channel: Channel) -> None:
        """End messages that are past their limits, and give back what others could run meanwhile."""
        for claim_run in self.claims():
            try:
                self._limits.enforce(claim_run, channel, ticks())
            except FenceLost as error:
                self.lose(claim_run, error)
            except StoreError as error:
                self._trouble.note("cannot give back what is late", error)
            else:
                self._trouble.over("what is late is given back")

    # -- for the main thread -------------------------------------------------------------------------------------------

    @property
    def hanging(self) -> set[int]:
        """The threads that will not come back."""
        return self._limits.hanging

    def overdue(self, now: float) -> str:
        """Return the reason why a handler hangs that ran past its limit at ``now``, or an empty text.

        It takes no lock of a claim, because the holder may be waiting for the server.
        """
        for claim_run in self.claims():
            for watch in watches_of(claim_run):
                running, ran_s = watch.running, now - watch.running_since
                if running is None or ran_s <= watch.time_limit_s:
                    continue
                message = next((one for one in claim_run.claim.messages if one.offset == running), None)
                if message is not None:
                    return hang_text(claim_run, watch, message, ran_s)
        return ""

    def began_at(self, thread_id: int | None, now: float) -> float:
        """Return ``now`` if a thread runs a message, else when its last one of a claim that it works on began, or 0."""
        with self._mutex:
            claim_run = self._claims.get(thread_id or 0)
        if claim_run is None:
            return 0.0
        return now if claim_run.watch.running is not None else claim_run.watch.running_since

    def give_everything_back(self, channel: Channel) -> None:
        """Return all claims, running messages included, before the process dies with its handlers running.

        Args:
            channel: not that of a thread, which may be using it.
        """
        for claim_run in self.claims():
            try:
                claim_run.give_back(channel)
            except (StoreError, EmsError) as error:
                log.warning("could not give back the claim of %s: %s", claim_run.claim.place, error)
