"""The beat service that fires periodic tasks, from the schedules table alone, without the app."""

from __future__ import annotations

import logging

from emsworker.core.config import Settings
from emsworker.core.counted import counted
from emsworker.store import Session
from emsworker.store.cluster import schedules

log = logging.getLogger(__name__)

_NONE_BEATS = 2
_MOST, _TOGETHER = 1000, 100  # of a run, and of a transaction


def fire_schedules(session: Session, settings: Settings) -> float:
    """Send the calls whose slots are due; the pause ends at the next slot."""
    due, next_s = schedules.find_due(session, _MOST)
    grace_s = 2 * settings.beat_lease_s + settings.beat_s  # this much may pass until another beat leads
    moved = sum(_fire(session, due[first : first + _TOGETHER], grace_s) for first in range(0, len(due), _TOGETHER))
    if moved and len(due) == _MOST:  # there are more, and the other services have their turn in between
        return 0.0
    pause = settings.beat_s if due or next_s is not None else _NONE_BEATS * settings.beat_s
    return min(pause, next_s) if next_s is not None else pause


def _fire(session: Session, names: list[str], grace_s: float) -> int:
    fired = schedules.fire(session, names, grace_s)
    for name, why in fired.damaged.items():
        log.error("schedule %r is disabled: %s", name, why)
    log.debug("fired %s of %s", counted(fired.slots, "slot"), counted(fired.moved, "schedule"))
    return fired.moved
