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
from emsworker.core.polling import PollInterval
from emsworker.runtime.hints import Chooser, Hint
from emsworker.runtime.runnable import Runnable, Trouble
from emsworker.store.claims import Work, find_work
from emsworker.store.database import Database
from emsworker.store.errors import Conflict, ConnectionLost
from emsworker.store.messages import close_hole
from emsworker.store.session import Session

log = logging.getLogger(__name__)

_AWAY_S = 0.5
_LOOK_S = 0.2  # while all threads are busy, or a hole is waited for


class Poller(Runnable):
    """Finds work and hands out hints.

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
        super().__init__("ems-poller", on_death)
        self._also = also
        self._session = database.session()
        self._settings = settings
        self._topic_of = dict(topic_of)
        self._groups_of = Counter(topic_of.values())
        self._in_order = frozenset(in_order)
        self._lock = forks.Lock()
        self._found = forks.Condition(self._lock)  # the consumers wait for it
        self._wake = forks.Condition(self._lock)  # the poller itself does
        self._rung = False
        self._idle = 0
        self._hints: list[Hint] = []
        self._open: dict[int, list[int]] = {}  # topic id -> its groups in which anybody may take what is new
        self._fresh: set[Hint] = set()  # rung for, and not followed since
        self._held: dict[int, float] = {}  # until when a group may not start anything, for its limits
        self._chooser = Chooser()
        self._interval = PollInterval(settings.poll_min_s, settings.poll_max_s)
        self._due_at = math.inf  # when something is due that is known of: a retry, a delayed message, a schedule
        self._blocked = False  # a hole was seen that is not old enough to be closed
        self.looked_at = ticks()
        self._trouble = Trouble(log)

    # -- the consumers' side -------------------------------------------------------------------------------------------

    def next_hint(self) -> Hint | None:
        """Where to try next, or ``None``."""
        with self._lock:
            if not self._hints:
                return None
            chosen = self._chooser.choose(self._hints)
            self._fresh.discard(chosen)
            if chosen.exclusive:
                self._hints.remove(chosen)
            return chosen

    @property
    def alone(self) -> bool:
        """Whether there is but one hint, so that waiting for its lock beats looking elsewhere."""
        return len(self._hints) <= 1

    def forget(self, hint: Hint) -> None:
        """Nothing was there; until the next look nobody else needs to try, unless somebody has rung since."""
        with self._lock:
            if hint in self._hints and hint not in self._fresh:
                self._hints.remove(hint)

    def again(self, hint: Hint) -> None:
        """Nobody is at work any more where an exclusive hint led to; it may be worth another try."""
        with self._lock:
            if hint not in self._hints:
                self._hints.append(hint)

    def hold(self, group_id: int, seconds: float) -> None:
        """A group may not start anything for so long: no hints of it until then."""
        with self._lock:
            self._hints = [hint for hint in self._hints if hint.group_id != group_id]
            self._held[group_id] = ticks() + seconds
            self._wake.notify()

    def more(self) -> None:
        """A claim came back full: there is more, so one more idle thread may come."""
        with self._lock:
            self._found.notify()

    def wait_for_lead(self, seconds: float) -> None:
        """Sleep until there is a hint, at most so long."""
        with self._lock:
            self._idle += 1
            self._wake.notify()  # it pauses for less, now that somebody is idle
            try:
                if not self._hints and not self.stopping.is_set():
                    self._found.wait(seconds)
            finally:
                self._idle -= 1

    def note_work(self) -> None:
        """A claim has been worked off; where that was, more may come soon."""
        self._interval.note()

    def ring(self, topic_id: int, partitions: Collection[int]) -> None:
        """Something was published: send idle threads there, and look at once for groups where they may not just go.

        Args:
            topic_id: where.
            partitions: where in it, if that is known.
        """
        with self._lock:
            groups = self._open.get(topic_id, ())
            hints = [Hint(group_id, "stream", number) for group_id in groups for number in partitions]
            if not hints or len(groups) < self._groups_of[topic_id]:
                self._rung = True
                self._wake.notify()
            self._hints += [hint for hint in hints if hint not in self._hints]
            self._fresh.update(hints)
            self._found.notify(len(hints))

    # -- the poller's own side -----------------------------------------------------------------------------------------

    def step(self) -> None:
        """Wait for the next look, and look."""
        rung = self._wait()
        if self.stopping.is_set():
            return
        try:
            self._look()
            if self._also is not None and self._also(self._session, rung):
                self._interval.note()
        except (ConnectionLost, Conflict) as error:
            self._trouble.note("cannot look for work", error)
            with self._lock:
                self._hints, self._open = [], {}  # what was found may have been paused or taken since
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
                self._interval.note()
            rung, self._rung = self._rung, False
            return rung

    def _next_look(self, began: float) -> float:
        pause_s = self._interval.pause_s(began)
        if not self._idle:
            pause_s = min(_LOOK_S, self._settings.poll_max_s)
        elif self._blocked:
            pause_s = min(pause_s, _LOOK_S)
        return min(began + pause_s, self._due_at, *self._held.values())

    def _look(self) -> None:
        look = find_work(self._session, list(self._topic_of))
        found = look.work
        hints = [hint for group_id, work in found.items() for hint in self._hints_of(group_id, work)]
        closed = [self._close(group_id, partition) for group_id, work in found.items() for partition in work.holes]
        with self._lock:
            self.looked_at = now = ticks()
            self._due_at = math.inf if look.due_s is None else now + look.due_s
            self._held = {group_id: until for group_id, until in self._held.items() if until > now}
            self._note_open(look.open)
            hints += [hint for hint in self._fresh if hint not in hints]  # rung for while we looked
            self._hints = hints = [hint for hint in hints if hint.group_id not in self._held]
            if hints:
                self._interval.note()
                self._found.notify(len(hints))
            self._blocked = bool(closed)
            self._rung |= any(closed)

    def _note_open(self, group_ids: Collection[int]) -> None:
        self._open = {}
        for group_id in group_ids:
            self._open.setdefault(self._topic_of[group_id], []).append(group_id)
        self._fresh = {hint for hint in self._fresh if hint.group_id in group_ids}

    def _hints_of(self, group_id: int, work: Work) -> list[Hint]:
        hints = [Hint(group_id, "waiting", work.highest_waiting)] if work.waiting else []
        if work.retries:
            hints.append(Hint(group_id, "retries"))
        exclusive = group_id in self._in_order
        hints += [Hint(group_id, "stream", partition, exclusive) for partition in work.partitions]
        return [replace(hint, limited=True) for hint in hints] if work.limited else hints

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
