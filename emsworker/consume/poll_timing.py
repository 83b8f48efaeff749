"""The timing of polls: often while something comes, less often while idle, rarely while Redis tells of all there is."""

from __future__ import annotations

import math

from emsworker.core.config import Settings
from emsworker.core.process.clock import ticks
from emsworker.core.process.polling import PollInterval

# While another thread looks for new messages, as that look costs less than a poll: its share of the shortest pause and
# of the idle time.
_NEWS_SHARE, _NEWS_IDLE_SHARE = 0.2, 1 / 30
# Between polls while notifications tell of everything, and how much later than a poll a notification may come.
_TOLD_S, _LATE_S = 0.05, 0.1
# The least ratio of a pause to the time that a poll takes, for 0.1 s at most: many processes leave a busy server alone.
_REST, _MOST_REST_S = 4, 0.1
SOON_S = 1.0


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
        self._untold_since = math.inf  # the first time since then that a poll has found what nobody had told

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
        """Note that a poll has found what nobody had told."""
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
