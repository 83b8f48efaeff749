"""One poller for each process: it looks, without locks, for what the idle consumer threads could take.

Idle it pauses for a tenth of the time for which there has been nothing to do, from ``poll_min_s`` to ``poll_max_s``. A
wake-up over Redis or a publish of this very process makes it look at once; or, where it names the partition, and the
last look found that anybody may take what is new there, sends an idle thread there without a look. It also closes holes
that have grown old.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from emsworker.core import forks
from emsworker.core.clock import ticks
from emsworker.core.config import Settings
from emsworker.core.pace import Pace
from emsworker.runtime.leads import Chooser, Lead
from emsworker.runtime.runnable import Runnable, Trouble
from emsworker.store.claims import Work, find_work
from emsworker.store.database import Database
from emsworker.store.errors import Conflict, ConnectionLost
from emsworker.store.messages import close_hole
from emsworker.store.session import Session

log = logging.getLogger(__name__)

_AWAY_S = 0.5
_LOOK_S = 0.2  # while all threads are busy, or a hole is waited for


class Scout(Runnable):
    """Finds work and hands out leads.

    Args:
        database: where to look.
        settings: poll_min_s, poll_max_s, gap_timeout_s.
        topic_of: group id -> topic id, for all groups of this process.
        in_order: those of them that run in order.
        also: called at every look with the session, and whether somebody has rung: it looks for something else, and
            tells whether there is any.
        on_death: see :class:`Runnable`.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        topic_of: Mapping[int, int],
        in_order: Collection[int],
        on_death: Callable[[str, BaseException], None],
        also: Callable[[Session, bool], bool] | None = None,
    ) -> None:
        super().__init__("ems-scout", on_death)
        self._also = also
        self._session = database.session()
        self._settings = settings
        self._topic_of = dict(topic_of)
        self._groups_of = Counter(topic_of.values())
        self._in_order = frozenset(in_order)
        self._lock = forks.Lock()
        self._found = forks.Condition(self._lock)  # the consumers wait for it
        self._wake = forks.Condition(self._lock)  # the scout itself does
        self._rung = False
        self._idle = 0
        self._leads: list[Lead] = []
        self._open: dict[int, list[int]] = {}  # topic id -> its groups in which anybody may take what is new
        self._fresh: set[Lead] = set()  # rung for, and not followed since
        self._held: dict[int, float] = {}  # until when a group may not start anything, for its limits
        self._chooser = Chooser()
        self._pace = Pace(settings.poll_min_s, settings.poll_max_s)
        self._due_at = math.inf  # when something is due that is known of: a retry, a delayed message, a schedule
        self._blocked = False  # a hole was seen that is not old enough to be closed
        self.looked_at = ticks()
        self._trouble = Trouble(log)

    # -- the consumers' side -------------------------------------------------------------------------------------------

    def next_lead(self) -> Lead | None:
        """Where to try next, or ``None``."""
        with self._lock:
            if not self._leads:
                return None
            chosen = self._chooser.choose(self._leads)
            self._fresh.discard(chosen)
            if chosen.exclusive:
                self._leads.remove(chosen)
            return chosen

    @property
    def alone(self) -> bool:
        """Whether there is but one lead, so that waiting for its lock beats looking elsewhere."""
        return len(self._leads) <= 1

    def forget(self, lead: Lead) -> None:
        """Nothing was there; until the next look nobody else needs to try, unless somebody has rung since."""
        with self._lock:
            if lead in self._leads and lead not in self._fresh:
                self._leads.remove(lead)

    def again(self, lead: Lead) -> None:
        """Nobody is at work any more where an exclusive lead led to; it may be worth another try."""
        with self._lock:
            if lead not in self._leads:
                self._leads.append(lead)

    def hold(self, group_id: int, seconds: float) -> None:
        """A group may not start anything for so long: no leads of it until then."""
        with self._lock:
            self._leads = [lead for lead in self._leads if lead.group_id != group_id]
            self._held[group_id] = ticks() + seconds
            self._wake.notify()

    def more(self) -> None:
        """A claim came back full: there is more, so one more idle thread may come."""
        with self._lock:
            self._found.notify()

    def wait_for_lead(self, seconds: float) -> None:
        """Sleep until there is a lead, at most so long."""
        with self._lock:
            self._idle += 1
            self._wake.notify()  # it pauses for less, now that somebody is idle
            try:
                if not self._leads and not self.stopping.is_set():
                    self._found.wait(seconds)
            finally:
                self._idle -= 1

    def note_work(self) -> None:
        """A claim has been worked off; where that was, more may come soon."""
        self._pace.note()

    def ring(self, topic_id: int, partitions: Collection[int]) -> None:
        """Something was published: send idle threads there, and look at once for groups where they may not just go.

        Args:
            topic_id: where.
            partitions: where in it, if that is known.
        """
        with self._lock:
            groups = self._open.get(topic_id, ())
            leads = [Lead(group_id, "stream", number) for group_id in groups for number in partitions]
            if not leads or len(groups) < self._groups_of[topic_id]:
                self._rung = True
                self._wake.notify()
            self._leads += [lead for lead in leads if lead not in self._leads]
            self._fresh.update(leads)
            self._found.notify(len(leads))

    # -- the scout's own side ------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Wait for the next look, and look."""
        rung = self._wait()
        if self.stopping.is_set():
            return
        try:
            self._look()
            if self._also is not None and self._also(self._session, rung):
                self._pace.note()
        except (ConnectionLost, Conflict) as error:
            self._trouble.note("cannot look for work", error)
            with self._lock:
                self._leads, self._open = [], {}  # what was found may have been paused or taken since
            self.sleep(_AWAY_S)
        else:
            self._trouble.over("can look for work")

    def _wait(self) -> bool:
        """Until the next look; whether somebody has rung."""
        with self._lock:
            began = ticks()
            while not self._rung and not self.stopping.is_set() and ticks() < (end := self._next_look(began)):
                self._wake.wait(end - ticks())
            if ticks() >= self._due_at:  # whoever sends it is about to
                self._pace.note()
            rung, self._rung = self._rung, False
            return rung

    def _next_look(self, began: float) -> float:
        pause_s = self._pace.pause_s(began)
        if not self._idle:
            pause_s = min(_LOOK_S, self._settings.poll_max_s)
        elif self._blocked:
            pause_s = min(pause_s, _LOOK_S)
        return min(began + pause_s, self._due_at, *self._held.values())

    def _look(self) -> None:
        look = find_work(self._session, list(self._topic_of))
        found = look.work
        leads = [lead for group_id, work in found.items() for lead in self._leads_of(group_id, work)]
        closed = [self._close(group_id, partition) for group_id, work in found.items() for partition in work.holes]
        with self._lock:
            self.looked_at = now = ticks()
            self._due_at = math.inf if look.due_s is None else now + look.due_s
            self._held = {group_id: until for group_id, until in self._held.items() if until > now}
            self._note_open(look.open)
            leads += [lead for lead in self._fresh if lead not in leads]  # rung for while we looked
            self._leads = leads = [lead for lead in leads if lead.group_id not in self._held]
            if leads:
                self._pace.note()
                self._found.notify(len(leads))
            self._blocked = bool(closed)
            self._rung |= any(closed)

    def _note_open(self, group_ids: Collection[int]) -> None:
        self._open = {}
        for group_id in group_ids:
            self._open.setdefault(self._topic_of[group_id], []).append(group_id)
        self._fresh = {lead for lead in self._fresh if lead.group_id in group_ids}

    def _leads_of(self, group_id: int, work: Work) -> list[Lead]:
        leads = [Lead(group_id, "waiting", work.highest_waiting)] if work.waiting else []
        if work.retries:
            leads.append(Lead(group_id, "retries"))
        exclusive = group_id in self._in_order
        leads += [Lead(group_id, "stream", partition, exclusive) for partition in work.partitions]
        return [replace(lead, limited=True) for lead in leads] if work.limited else leads

    def _close(self, group_id: int, partition: int) -> bool:
        closed = close_hole(self._session, self._topic_of[group_id], group_id, partition, self._settings.gap_timeout_s)
        if closed:
            log.info("closed a hole in partition %d of topic %d", partition, self._topic_of[group_id])
        return closed

    def stop(self) -> None:
        """Ask the loop, and every waiting consumer, to end."""
        super().stop()
        with self._lock:
            self._wake.notify()
            self._found.notify_all()

    def shut_down(self) -> None:
        """Close the session."""
        self._session.close()
