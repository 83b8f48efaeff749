"""The beat service that takes in what other programs have written by plain SQL."""

from __future__ import annotations

import logging

from emsworker.core.config import Settings
from emsworker.core.process.clock import ticks
from emsworker.core.process.polling import PollInterval
from emsworker.publish.intake import take_in
from emsworker.store.engine.errors import AssertionBroken
from emsworker.store.engine.session import Session
from emsworker.store.stream import outbox

log = logging.getLogger(__name__)

_BATCH = 500
_SHORTEST_S, _LONGEST_S = 0.05, 1.0


class Intake:
    """Moves rows of ``ems_publish`` into the outbox, and those that are due into the stream at once.

    It polls as the relay does: often while there is traffic, once a second while there is none.
    """

    def __init__(self) -> None:
        self._interval = PollInterval(_SHORTEST_S, _LONGEST_S)

    def __call__(self, session: Session, settings: Settings) -> float:
        """Take in one batch and return the pause."""
        try:
            done = take_in(session, settings, _BATCH)
        except AssertionBroken as error:  # the next round finds out that there is no such topic
            log.info("a topic was deleted while rows of ems_publish were taken in: %s", error)
            return _SHORTEST_S
        if done.moved:
            outbox.relay_due(session, _BATCH)
        if done.moved or done.refused:
            self._interval.note()
            return 0.0
        return min(self._interval.pause_s(ticks()), settings.poll_max_s)
