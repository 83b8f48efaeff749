"""The flusher: the thread that writes down what claims owe the store, within ``ack_interval_s``.

A worker process has one, and each consumer has one. Between two looks for what is due it has the time limits of what
runs enforced.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from logging import getLogger
from typing import Generic, TypeVar

from emsworker.broker.channel import Channel
from emsworker.consume.claim_progress import ClaimProgress, ClaimWrite
from emsworker.core.errors import FenceLost, StoreError
from emsworker.core.model import Claim
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.process.forks import Mutex
from emsworker.core.process.runnable import Runnable, Trouble

log = getLogger(__name__)

_LOOK_S = 0.1


class HeldClaim(ABC):
    """A claim that a worker or a consumer holds.

    Args:
        progress: of the claim.
        lock: held around every access to the progress.

    Attributes:
        sending: held from the beginning of a write until its answer, so that writes arrive in order.
    """

    def __init__(self, progress: ClaimProgress, lock: Mutex) -> None:
        self.progress, self.lock = progress, lock
        self.sending = forks.RLock()

    @property
    def claim(self) -> Claim:
        """The claim as it is now: it may have been cut, or its running messages detached."""
        return self.progress.claim

    @property
    def closed(self) -> bool:
        """True if it is recorded as finished or belongs to another client: nothing more may be written."""
        return self.progress.closed

    @abstractmethod
    def plan(self, interval_s: float, *, at_once: bool) -> ClaimWrite | None:
        """Return the write that is due, which is under way from then on; the caller holds ``lock``.

        Args:
            interval_s: seconds for which ends may wait, so that one write holds many.
            at_once: they do not wait.
        """

    def end_sending(self) -> None:
        """Release ``sending`` if this thread holds it: an exception from outside may come right after the acquiring."""
        with contextlib.suppress(RuntimeError):
            self.sending.release()


C = TypeVar("C", bound=HeldClaim)


class HeldClaims(ABC, Generic[C]):
    """The claims of a worker process, or of a consumer."""

    def wait(self, seconds: float) -> bool:
        """Wait for a reason to write at once, for at most this many seconds; return whether there is one."""
        return False

    @abstractmethod
    def claims(self) -> Sequence[C]:
        """Return those that are not finished."""

    def holds(self, claim: C) -> bool:
        """Return whether the lease under which a claim was taken is known to hold; otherwise the server is asked."""
        return False

    @abstractmethod
    def confirm(self, claim: C, write: ClaimWrite) -> None:
        """Note that a write was committed."""

    @abstractmethod
    def lose(self, claim: C, error: FenceLost) -> None:
        """Note that a claim has another owner."""

    @abstractmethod
    def enforce_limits(self, channel: Channel) -> None:
        """End what has run for too long."""

    def after_writes(self) -> None:
        """Do what can be done once all that is due is written down."""


class Flusher(Runnable, Generic[C]):
    """Writes down what is due; it looks twice per ``interval_s``, and when there is a reason to write at once.

    Args:
        channel: for this thread. It must not wait for the server: a handler's thread that wants to write its progress
            down would wait too, and if its transaction holds the rows, no server would detect the deadlock.
        interval_s: seconds that ends may wait for a write.
        held: the claims.
        on_death: see :class:`Runnable`.
    """

    def __init__(
        self, channel: Channel, interval_s: float, held: HeldClaims[C], on_death: Callable[[str, BaseException], None]
    ) -> None:
        super().__init__("ems-flusher", on_death)
        self._channel = channel
        self._interval_s = interval_s
        self._held: HeldClaims[C] = held
        self._mutex = forks.Lock()  # around every use of the channel
        self._trouble = Trouble(log)

    def step(self) -> None:
        """Check every claim once."""
        until = ticks() + self._interval_s / 2
        at_once = self._held.wait(self._interval_s / 2)
        with self._mutex:
            self._held.enforce_limits(self._channel)
            for claim in self._held.claims():
                self._write(claim, at_once=at_once)
        self._held.after_writes()
        if not at_once or self._held.claims():
            self.sleep(until - ticks())

    def flush(self, timeout_s: float) -> bool:
        """Write everything down; return false if that was not possible in time."""
        until = ticks() + timeout_s
        while not self.write_all():
            if ticks() > until:
                return False
            forks.Event().wait(self._interval_s / 2)
        return True

    def write_all(self) -> bool:
        """Write everything down that has ended; return false if the server cannot be reached."""
        for claim in self._held.claims():
            claim.end_sending()  # if an exception from outside came right after the acquiring
        with self._mutex:
            return all([self._write(claim, at_once=True) for claim in self._held.claims()])

    def write_now(self, claim: C, begin: Callable[[], ClaimWrite | None]) -> bool:
        """Send the write that ``begin`` begins under the lock; return false if that is not possible now."""
        with self._mutex:
            try:
                if not _begin_sending(claim, waits=True):
                    return False
                with claim.lock:
                    write = begin()
                return write is not None and self._send(claim, write)
            finally:
                claim.end_sending()

    def _write(self, claim: C, *, at_once: bool) -> bool:
        """Send what is due of a claim; return false if something is left because the server cannot be reached."""
        try:
            if not _begin_sending(claim, waits=at_once):
                return True  # another thread is writing it down, or has written its end
            while True:
                with claim.lock:
                    write = claim.plan(self._interval_s, at_once=at_once)
                if write is None:
                    return True
                if not self._send(claim, write):
                    return False
        finally:
            claim.end_sending()

    def _send(self, claim: C, write: ClaimWrite) -> bool:
        try:
            send(self._channel, write, holds=self._held.holds(claim))
            self._held.confirm(claim, write)
        except FenceLost as error:
            self._held.lose(claim, error)
        except StoreError as error:
            self._trouble.note("cannot write progress down", error)
            return False
        except BaseException:  # from outside, in a thread that flushes
            write.in_doubt = True
            raise
        else:
            self._trouble.over("progress is written down")
        return True

    def close(self) -> None:
        self._channel.close()


def _begin_sending(claim: HeldClaim, *, waits: bool) -> bool:
    """Acquire ``sending``; false if another thread has it, or has closed the claim.

    A thread that was interrupted when it had written the end of a claim may keep it for ever.
    """
    while not claim.sending.acquire(waits, _LOOK_S if waits else -1):
        if not waits or claim.closed:
            return False
    return True


def send(channel: Channel, write: ClaimWrite, *, holds: bool = False) -> None:
    """Send a write, perhaps not for the first time.

    Args:
        holds: the lease under which the claim was taken holds. Nobody else can have ended the claim then, so that a
            write in doubt that has ended it was our own.

    Raises:
        FenceLost: the claim has another owner.
        ConnectionLost: it is not known if it was committed.
    """
    try:
        if write.rest is not None:
            channel.detach(write.flush, write.rest)
        elif write.last is not None:
            channel.give_back(write.flush, write.last, write.isolation)
        else:
            channel.flush(write.flush)
    except FenceLost:
        if not write.in_doubt or not _was_committed(channel, write, holds):
            raise
    except BaseException:  # also one from outside
        write.in_doubt = True
        raise


def _was_committed(channel: Channel, write: ClaimWrite, holds: bool) -> bool:
    if write.rest is not None:
        return channel.acked_to(write.rest) is not None
    return write.flush.finished and (holds or channel.was_committed(write.flush))
