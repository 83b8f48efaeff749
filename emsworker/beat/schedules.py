"""The beat service that fires periodic tasks, from the schedules table alone, without the app."""

from __future__ import annotations

import logging

from emsworker.core.config import Settings
from emsworker.core.counted import counted
from emsworker.store import Session
from emsworker.store.cluster import schedules

log = logging.getLogger(__name__)

_NONE_BEATS = 2


def fire_schedules(session: Session, settings: Settings) -> float:
    """Send the calls whose slots are due; the pause ends at the next slot."""
    found = schedules.find_next(session)
    pause = settings.beat_s if found else _NONE_BEATS * settings.beat_s
    grace_s = 2 * settings.beat_lease_s + settings.beat_s  # this much may pass until another beat leads
    for name, seconds in found:
        if seconds > 0:
            return min(pause, seconds)
        try:
            fired = schedules.fire(session, name, grace_s)
        except ValueError as error:
            log.error("schedule %r is disabled: %s", name, error)
            continue
        log.debug("schedule %r: fired %s", name, counted(fired, "slot"))
    return pause
