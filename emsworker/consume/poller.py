"""The poller: a thread in each process that looks, without locks, for work that idle consumer threads could claim.

While idle it pauses for a tenth of the time for which there has been nothing to do, from ``poll_min_s`` to
``poll_max_s``. A notification over Redis, or a publish in this process, makes it poll at once. If the notification
names the partition, and the last poll found that any client may claim new messages there, an idle thread goes there
without a poll. While notifications over Redis tell of all that is found, polls are rare, because a poll takes time from
the thread that has just been told. The poller also closes holes that are old enough.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from emsworker.consume.hints import Chooser, Hint, hints_of
from emsworker.core.config import Settings
from emsworker.core.errors import REFUSED
from emsworker.core.model import Topic
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.process.polling import PollInterval
from emsworker.core.process.runnable import Runnable
from emsworker.core.work import AvailableWork, Place
from emsworker.store import Database, Session
from emsworker.store.groups.claims import find_work
from emsworker.store.stream.messages import close_hole

log = logging.getLogger(__name__)

# While another thread looks for new messages, as that look costs less than a poll: its share of the shortest pause and
# of the idle time.
_NEWS_SHARE, _NEWS_IDLE_SHARE = 0.2, 1 / 30
# Between polls while notifications tell of everything, and how much later than a poll a notification may come.
_TOLD_S, _LATE_S = 0.05, 0.1
# The least ratio of a pause to the time that a poll takes, for 0.1 s at most: many processes leave a busy server alone.
_REST, _MOST_REST_S = 4, 0.1
SOON_S = 1.0
_RELIEVED_S = 5.0  # between polls, while another thread looks for new messages
_ANNOUNCED_S = 0.05  # within which the notification follows an announcement
_LOOK_S = 0.2  # while all threads are busy, or while a hole is too young to be closed


class PollTiming:
    """The pauses between polls.

    Args:
        settings: poll_min_s, poll_max_s.

    Attributes:
        interval, news_interval: the pauses of the poller, and of a thread that looks for new messages instead.
        due_at: when the next known retry, delayed message or schedule is due.
        cost_s: the seconds that the last poll took.
        worked_at: when a claim was finished last.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.interval = self.news_interval = PollInterval(settings.poll_min_s, settings.poll_max_s)
        self.due_at = math.inf
        self.cost_s = 0.0
        self.worked_at = -math.inf
        self._told = False  # Redis has sent a notification
        self._untold_since = math.inf  # when a poll first found work without a notification

    def relieve(self) -> None:
        """Note that another thread looks for new messages from now on."""
        shortest_s = _NEWS_SHARE * self._settings.poll_min_s
        self.news_interval = PollInterval(shortest_s, self._settings.poll_max_s, _NEWS_IDLE_SHARE)

    def note(self) -> None:
        """Note that there was work; more may follow soon."""
        self.interval.note()
        self.news_interval.note()

    def note_work(self) -> None:
        """Note that a claim has been finished."""
        self.worked_at = ticks()
        self.note()

    def note_told(self) -> None:
        """Note a notification over Redis."""
        self._told, self._untold_since = True, math.inf

    def note_untold(self) -> None:
        """Note that a poll has found work without a notification."""
        self._untold_since = min(self._untold_since, ticks())

    @property
    def is_told(self) -> bool:
        """True while notifications over Redis tell of all that is found."""
        return self._told and ticks() < self._untold_since + _LATE_S

    @property
    def worked_lately(self) -> bool:
        """True if a claim was finished in the last second."""
        return ticks() < self.worked_at + SOON_S

    def news_pause_s(self) -> float:
        """Return the seconds within which another thread is to look for new messages."""
        return self._told_pause_s(self.news_interval, ticks())

    def pause_s(self, since: float) -> float:
        """Return the seconds between polls if nothing has happened since ``since``."""
        rest_s = min(_REST * self.cost_s, _MOST_REST_S, self._settings.poll_max_s)
        return max(self._told_pause_s(self.interval, since), rest_s)

    def _told_pause_s(self, interval: PollInterval, since: float) -> float:
        pause_s = interval.pause_s(since)
        return max(pause_s, min(_TOLD_S, self._settings.poll_max_s)) if self.is_told else pause_s


class Poller(Runnable):
    """Finds work and hands out hints.

    Args:
        database: the stream.
        settings: poll_min_s, poll_max_s, gap_timeout_s.
        topic_of: group id -> its topic, for all groups of this process.
        in_order: the groups that run in order.
        on_cancelled: called at every poll with the messages that were cancelled while a client has them.
        also: called at every poll with the session, and true if a notification has arrived; returns true if it found
            other work.
        on_death: see :class:`Runnable`.
    """

    action = "look for work"

    def __init__(
        self,
        database: Database,
        settings: Settings,
        topic_of: Mapping[int, Topic],
        in_order: Collection[int],
        on_death: Callable[[str, BaseException], None],
        also: Callable[[Session, bool], bool] | None = None,
        on_cancelled: Callable[[Collection[Place]], object] = lambda places: None,
    ) -> None:
        super().__init__("ems-poller", on_death)
        self._also, self._on_cancelled = also, on_cancelled
        self._session = database.session()
        self._settings = settings
        self._topic_of = {group_id: topic.id for group_id, topic in topic_of.items()}
        self._topic_names = {topic.id: topic.name for topic in topic_of.values()}
        self._groups_of = Counter(self._topic_of.values())
        self._partitions_of = {topic.id: frozenset(topic.partition_numbers()) for topic in topic_of.values()}
        self._in_order = set(in_order)
        self._lock = forks.Lock()
        self._found = forks.Condition(self._lock)  # the consumers wait on it
        self._wake = forks.Condition(self._lock)  # the poller waits on it
        self._notified = False
        self._idle = 0
        self._on_idle: Callable[[], object] | None = None  # of the thread that looks instead
        self._asked_at = -math.inf  # by that thread
        self._hints: list[Hint] = []
        self._announced: dict[Hint, float] = {}  # until when their notifications are expected
        self._open: dict[int, list[int]] = {}  # topic id -> its groups in which any client may claim new messages
        self._fresh: set[Hint] = set()  # from notifications, and not tried since
        self._held: dict[int | Hint, float] = {}  # until when nothing of a group is to start, or a hint to be followed
        self._chooser = Chooser()
        self._timing = PollTiming(settings)
        self._blocked = False  # a hole was seen that is not old enough to be closed
        self.looked_at = ticks()

    @property
    def refused_by(self) -> BaseException | None:
        """The error by which the server refuses the user now, or ``None``."""
        return self.trouble.error if isinstance(self.trouble.error, REFUSED) else None

    # -- the groups ----------------------------------------------------------------------------------------------------

    def watch(self, group_id: int, topic: Topic, *, in_order: bool) -> None:
        """Look for the work of one more group, at once."""
        with self._lock:
            if group_id not in self._topic_of:
                self._groups_of[topic.id] += 1
            self._topic_of = {**self._topic_of, group_id: topic.id}
            self._topic_names[topic.id] = topic.name
            self._partitions_of[topic.id] = frozenset(topic.partition_numbers())
            if in_order:
                self._in_order.add(group_id)
            self._notified = True
            self._wake.notify()

    def unwatch(self, group_id: int) -> None:
        """Look for the work of a group no longer."""
        with self._lock:
            topic_id = self._topic_of.get(group_id)
            if topic_id is not None:
                self._groups_of[topic_id] -= 1
                self._topic_of = {other: to for other, to in self._topic_of.items() if other != group_id}
            self._hints = [hint for hint in self._hints if hint.group_id != group_id]
            self._fresh = {hint for hint in self._fresh if hint.group_id != group_id}
            self._open = {to: [one for one in groups if one != group_id] for to, groups in self._open.items()}

    def relieve(self, on_idle: Callable[[], object]) -> None:
        """Poll seldom from now on: another thread looks for the work of :meth:`wanted`, and notifies.

        Args:
            on_idle: called when a thread becomes idle soon after work.
        """
        with self._lock:
            self._on_idle = on_idle
            self._timing.relieve()

    def wanted(self) -> tuple[Collection[int], float]:
        """Return the groups whose work an idle thread may claim, and the seconds within which to look for messages."""
        with self._lock:
            self._asked_at = ticks()
            groups = [group_id for open_groups in self._open.values() for group_id in open_groups] if self._idle else []
        return groups, self._timing.news_pause_s() if groups else math.inf

    # -- the consumers' side -------------------------------------------------------------------------------------------

    def next_hint(self) -> Hint | None:
        """Return the place to try next, or ``None``."""
        with self._lock:
            if not self._hints:
                return None
            chosen = self._chooser.choose(self._hints)
            self._fresh.discard(chosen)
            if chosen.exclusive:
                self._hints.remove(chosen)
            if chosen in self._announced and self._announced[chosen] > ticks():
                return replace(chosen, announced=True)
            return chosen

    @property
    def alone(self) -> bool:
        """True if there is at most one hint, so that waiting for its lock beats trying elsewhere."""
        return len(self._hints) <= 1

    def forget(self, hint: Hint, *, found: bool = False) -> None:
        """Drop a hint that led to no work until the next poll, unless a notification has arrived for it since."""
        with self._lock:
            if hint.announced and not found and self._announced.pop(hint, None) is None:
                return  # its notification was not followed
            if hint in self._hints and hint not in self._fresh:
                self._hints.remove(hint)

    def again(self, hint: Hint) -> None:
        """Restore an exclusive hint once no thread works there any longer; there may be more work."""
        with self._lock:
            if hint not in self._hints:
                self._hints.append(hint)

    def hold(self, group_id: int, seconds: float) -> None:
        """Hand out no hints of a group for this many seconds, because it may not start anything until then."""
        with self._lock:
            self._hints = [hint for hint in self._hints if hint.group_id != group_id]
            self._held[group_id] = ticks() + seconds
            self._wake.notify()

    def hold_hint(self, hint: Hint, seconds: float) -> None:
        """Hand out a hint no more for this many seconds, because what is there may not be taken until then."""
        with self._lock:
            self._hints = [other for other in self._hints if other != hint]
            self._held[hint] = ticks() + seconds
            self._wake.notify()

    def more(self) -> None:
        """Wake one more idle thread: a claim came back full, so there is more."""
        with self._lock:
            self._found.notify()

    def wait_for_hint(self, seconds: float) -> None:
        """Sleep until there is a hint, for at most this many seconds."""
        with self._lock:
            self._idle += 1
            self._wake.notify()  # its pause is shorter while a thread is idle
            if self._on_idle is not None and self._timing.worked_lately and not self._timing.is_told:
                self._on_idle()
            try:
                if not self._hints and not self.stopping.is_set():
                    self._found.wait(seconds)
            finally:
                self._idle -= 1

    def note_work(self) -> None:
        """Note that a claim has been finished; more work may follow soon."""
        self._timing.note_work()

    def tell(self, topic_id: int, partitions: Collection[int]) -> None:
        """Take a notification over Redis; see :meth:`notify`. One that was announced has been followed already."""
        with self._lock:
            self._timing.note_told()
            known = self._known(topic_id, partitions)
            left = [number for number in known if not self._was_announced(topic_id, number)]
            is_followed = len(known) == len(partitions) > len(left) == 0
            others = self._groups_of[topic_id] - len(self._open.get(topic_id, ()))
        if others or not is_followed:
            self.notify(topic_id, left)

    def announce(self, topic_id: int, partitions: Collection[int]) -> None:
        """Send an idle thread to messages that are just being committed; their notification follows."""
        with self._lock:
            hints = [
                Hint(group_id, "stream", number)
                for group_id in self._open.get(topic_id, ())
                for number in self._known(topic_id, partitions)
            ]
            if self._idle:
                self._announced |= dict.fromkeys(hints, ticks() + _ANNOUNCED_S)
                self._hand_out(hints)

    def _known(self, topic_id: int, partitions: Collection[int]) -> list[int]:
        """Return those that the topic had when it was looked up: anybody may publish any number on Redis."""
        there = self._partitions_of.get(topic_id, frozenset())
        return [number for number in partitions if number in there]

    def _was_announced(self, topic_id: int, partition: int) -> bool:
        hints = [Hint(group_id, "stream", partition) for group_id in self._open.get(topic_id, ())]
        until = [self._announced.pop(hint, 0.0) for hint in hints]
        return bool(hints) and min(until) > ticks() and not self._fresh.intersection(hints)

    def note_found(self, topic_id: int, partitions: Collection[int]) -> None:
        """Take what another thread has found; see :meth:`notify`."""
        with self._lock:
            groups = self._open.get(topic_id, ())
            self._note_untold([Hint(group_id, "stream", number) for group_id in groups for number in partitions])
        self.notify(topic_id, partitions)

    def notify(self, topic_id: int, partitions: Collection[int]) -> None:
        """Send idle threads to new messages; poll at once for groups that the last poll did not find open.

        Args:
            topic_id: the topic that was published to.
            partitions: its partitions, if they are known.
        """
        with self._lock:
            groups = self._open.get(topic_id, ())
            hints = [Hint(group_id, "stream", number) for group_id in groups for number in partitions]
            if not hints or len(groups) < self._groups_of[topic_id]:
                self._notified = True
                self._wake.notify()
            self._hand_out(hints)

    def _hand_out(self, hints: Sequence[Hint]) -> None:
        self._hints += [hint for hint in hints if hint not in self._hints]
        self._fresh.update(hints)
        self._found.notify(len(hints))

    def _note_untold(self, found: Collection[Hint]) -> None:
        if any(hint.kind == "stream" and hint not in self._hints for hint in found):
            self._timing.note_untold()

    # -- the poller's own side -----------------------------------------------------------------------------------------

    def step(self) -> None:
        """Wait until the next poll is due, and poll."""
        notified = self._wait()
        if self.stopping.is_set():
            return
        self._look(notified)
        if self._also is not None and self._also(self._session, notified):
            self._timing.note()

    def on_trouble(self, error: Exception) -> None:
        """Forget what was found: it may have been paused or claimed since."""
        with self._lock:
            self._hints, self._open = [], {}
        super().on_trouble(error)

    def _wait(self) -> bool:
        """Wait until the next poll is due; return whether a notification has arrived."""
        with self._lock:
            began = ticks()
            while not self._notified and not self.stopping.is_set() and ticks() < (end := self._next_look(began)):
                self._wake.wait(end - ticks())
            if ticks() >= self._timing.due_at:  # it is about to be sent
                self._timing.note()
            notified, self._notified = self._notified, False
            return notified

    def _next_look(self, began: float) -> float:
        pause_s = self._timing.pause_s(began)
        if not self._idle:
            pause_s = min(_LOOK_S, self._settings.poll_max_s)
        elif ticks() < self._asked_at + SOON_S and sum(map(len, self._open.values())) == len(self._topic_of):
            pause_s = _RELIEVED_S
        if self._blocked and self._idle:
            pause_s = min(pause_s, _LOOK_S)
        return min(began + pause_s, self._timing.due_at, *self._held.values())

    def _look(self, notified: bool) -> None:
        began = ticks()
        look = find_work(self._session, list(self._topic_of))
        self._timing.cost_s = ticks() - began
        self._on_cancelled(look.cancelled)
        found = look.work
        hints = [hint for group_id, work in found.items() for hint in self._hints_of(group_id, work)]
        closed = [self._close(group_id, partition) for group_id, work in found.items() for partition in work.holes]
        with self._lock:
            self.looked_at = now = ticks()
            self._timing.due_at = math.inf if look.due_s is None else now + look.due_s
            self._held = {held: until for held, until in self._held.items() if until > now}
            self._note_open(look.open)
            if not notified:
                self._note_untold(hints)
            hints += [hint for hint in self._fresh if hint not in hints]  # notified during the poll
            watched = self._topic_of.keys() - self._held.keys()
            self._hints = hints = [hint for hint in hints if hint.group_id in watched and hint not in self._held]
            if hints:
                self._timing.note()
                self._found.notify(len(hints))
            self._blocked = bool(closed)
            self._notified |= any(closed)

    def _note_open(self, group_ids: Collection[int]) -> None:
        self._open = {}
        for group_id in self._topic_of.keys() & set(group_ids):
            self._open.setdefault(self._topic_of[group_id], []).append(group_id)
        self._fresh = {hint for hint in self._fresh if hint.group_id in group_ids}

    def _hints_of(self, group_id: int, work: AvailableWork) -> list[Hint]:
        hints = hints_of(group_id, work, exclusive=group_id in self._in_order)
        if not work.limited and not work.held:
            return hints
        return [replace(hint, limited=True, held=work.held) for hint in hints]

    def _close(self, group_id: int, partition: int) -> bool:
        topic_id = self._topic_of.get(group_id)
        if topic_id is None:
            return False
        closed = close_hole(self._session, topic_id, group_id, partition, self._settings.gap_timeout_s)
        if closed:
            log.info("closed a hole in %s/%d", self._topic_names[topic_id], partition)
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
