"""The beat service that moves messages into the stream: from the outbox when they are due, and from ``ems_publish``."""

from __future__ import annotations

import logging

from emsworker.core.config import Settings
from emsworker.core.errors import AssertionBroken
from emsworker.core.process.clock import ticks
from emsworker.core.process.polling import PollInterval
from emsworker.publish.intake import ingest
from emsworker.store.engine.session import Session
from emsworker.store.stream import outbox

log = logging.getLogger(__name__)

_BATCH = 500
_LONGEST_LOOK_S = 1.0


class Relay:
    """Moves messages that are due into the stream; its pause ends when the next one is due.

    Commits of other processes cannot be predicted, so it polls at an adaptive interval: often while there is traffic,
    backing off while there is none. Any number of relays may run at once, because each row is moved by the one that
    locks it. What other programs have written by plain SQL goes through the outbox; one statement looks for both.

    Args:
        shortest_s: the pause between two polls while there is traffic.
        late_s: move only messages that have been due for this long, and leave ``ems_publish`` to others; then the pause
            need not end exactly on time.
    """

    def __init__(self, shortest_s: float = 0.025, late_s: float = 0.0) -> None:
        self._shortest_s, self._late_s = shortest_s, late_s
        self._interval = PollInterval(shortest_s, _LONGEST_LOOK_S)

    def __call__(self, session: Session, settings: Settings) -> float:
        """Move one batch and return the pause."""
        done = outbox.relay_due(session, _BATCH, self._late_s, plain=not self._late_s)
        if done.topic_ids:
            self._interval.note()
        if done.plain and self._take_in(session, settings):
            return 0.0
        next_s = max(done.next_s, self._shortest_s) if self._late_s and done.next_s > 0 else done.next_s
        return min(next_s, self._interval.pause_s(ticks()), settings.poll_max_s)

    def _take_in(self, session: Session, settings: Settings) -> bool:
        """Move rows of ``ems_publish`` to the outbox; return whether anything came of it."""
        try:
            done = ingest(session, settings, _BATCH)
        except AssertionBroken as error:  # the next round finds out that there is no such topic
            log.info("a topic was deleted while rows of ems_publish were taken in: %s", error)
            return True
        if done.moved:
            outbox.relay_due(session, _BATCH)
        if done.moved or done.refused:
            self._interval.note()
        return bool(done.moved or done.refused)
