"""Limits of a group in a consumer thread: it asks for permits before each claim, and never waits for one.

A group that may not start anything now gets no hints for a while, so the threads run messages of other groups. Messages
that were claimed and not started in time go back as a waiting claim, and their permits with the next request.
"""

from __future__ import annotations

import math
from collections import defaultdict

from emsworker.consume.poller import Poller
from emsworker.core.limits import Permit
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.store import Session
from emsworker.store.groups import limits

# A permit is for about this moment: later starts would add to those that others are granted then.
FRESH_S = 0.25
CLAIM_S = 0.1


class Refunds:
    """Permits that this process was granted and has not used, by group; shared by its threads."""

    def __init__(self) -> None:
        self._lock = forks.Lock()
        self._left: dict[int, int] = defaultdict(int)

    def add(self, group_id: int, count: int) -> None:
        """Add ``count`` unused permits; a negative count means permits used without having been granted."""
        if count:
            with self._lock:
                self._left[group_id] += count

    def take(self, group_id: int) -> int:
        """Remove and return the unused permits of a group, to give them back now."""
        with self._lock:
            return self._left.pop(group_id, 0)


class Limiter:
    """The permits and the slot of one consumer thread.

    Args:
        session: the thread's session.
        refunds: the process's unused permits.
        poller: gives no hints of a group that may not start anything now.
    """

    def __init__(self, session: Session, refunds: Refunds, poller: Poller) -> None:
        self._session, self._refunds, self._poller = session, refunds, poller
        self._slot: tuple[int, str] | None = None
        self._rated = False
        self._fresh_until = math.inf

    @property
    def fresh(self) -> bool:
        """True if the next message of the present claim may still be started."""
        return ticks() < self._fresh_until

    def ask(self, group_id: int, client_id: str, wanted: int, *, at_once: bool, held: bool = False) -> Permit:
        """Ask for permits, and for a slot; with ``held`` also for the paused tasks."""
        self.leave(unless=group_id)
        refund = self._refunds.take(group_id)
        permit = limits.acquire(self._session, group_id, client_id, wanted, at_once=at_once, refund=refund, held=held)
        self._slot = (group_id, client_id) if permit.granted else None
        self._rated = permit.rated
        if not permit.granted:
            self._poller.hold(group_id, permit.wait_s)
        return permit

    def taken(self) -> None:
        """Note that a claim was taken: from now on its permits age."""
        self._fresh_until = ticks() + FRESH_S if self._rated else math.inf

    def end(self, group_id: int, permit: Permit, started: int) -> None:
        """Note that the claim, if one was taken, has ended after ``started`` starts; keep the rest for a refund."""
        self._rated, self._fresh_until = False, math.inf
        if permit.rated:
            self._refunds.add(group_id, permit.granted - started)

    def leave(self, *, unless: int | None = None) -> None:
        """Release the thread's slot for others, except a slot of group ``unless``."""
        if self._slot is not None and self._slot[0] != unless:
            limits.release(self._session, *self._slot)
            self._slot = None
