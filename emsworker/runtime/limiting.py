"""How a consumer thread keeps to the limits of a group: it asks before each claim, and no thread waits for a permit.

A group that may not start anything just now gets no hints for a while, so the threads run what other groups have. What
was claimed and not started in time goes back as a waiting claim, and its permits with the next question.
"""

from __future__ import annotations

import math
from collections import defaultdict

from emsworker.core import forks
from emsworker.core.clock import ticks
from emsworker.store import limits
from emsworker.store.limits import Permit
from emsworker.store.session import Session

# A permit is for about this moment: later starts would come on top of those that others are granted then.
FRESH_S = 0.25
CLAIM_S = 0.1


class Refunds:
    """Permits that this process was granted and has not used, by group; shared by its threads."""

    def __init__(self) -> None:
        self._lock = forks.Lock()
        self._left: dict[int, int] = defaultdict(int)

    def add(self, group_id: int, count: int) -> None:
        """So many were not used; below 0, so many were used without having been granted."""
        if count:
            with self._lock:
                self._left[group_id] += count

    def take(self, group_id: int) -> int:
        """What to give back now."""
        with self._lock:
            return self._left.pop(group_id, 0)


class Limiter:
    """The permits and the slot of one consumer thread.

    Args:
        session: the thread's.
        refunds: of the process.
    """

    def __init__(self, session: Session, refunds: Refunds) -> None:
        self._session = session
        self._refunds = refunds
        self._slot: tuple[int, str] | None = None
        self._rated = False
        self._fresh_until = math.inf

    @property
    def fresh(self) -> bool:
        """Whether the next message of the present claim may still be started."""
        return ticks() < self._fresh_until

    def ask(self, group_id: int, client_id: str, wanted: int, *, at_once: bool) -> Permit:
        """Ask for permits, and for a slot."""
        self.leave(unless=group_id)
        refund = self._refunds.take(group_id)
        permit = limits.acquire(self._session, group_id, client_id, wanted, at_once=at_once, refund=refund)
        self._slot = (group_id, client_id) if permit.granted else None
        self._rated = permit.rated
        return permit

    def taken(self) -> None:
        """A claim was taken: from now on its permits age."""
        self._fresh_until = ticks() + FRESH_S if self._rated else math.inf

    def end(self, group_id: int, permit: Permit, started: int) -> None:
        """The claim has ended, if one was taken, and so many of its messages were started."""
        self._rated, self._fresh_until = False, math.inf
        if permit.rated:
            self._refunds.add(group_id, permit.granted - started)

    def leave(self, *, unless: int | None = None) -> None:
        """The thread runs nothing of its limited group any more: its slot is for others."""
        if self._slot is not None and self._slot[0] != unless:
            limits.release(self._session, *self._slot)
            self._slot = None
