"""Beat services that remove what has served its time."""

from __future__ import annotations

from emsworker.core.config import Settings
from emsworker.store import dedup, limits, once, reports, results
from emsworker.store.session import Session

_CHUNK = 1000
_KEYS = 200
_PAUSE_BEATS = 10  # what is swept counts no more already; only its space is waited for


def sweep_keys(session: Session, settings: Settings) -> float:
    """Delete dedup keys that nobody is bound by any more, a few hundred at a time."""
    return 0.0 if dedup.sweep(session, _KEYS) == _KEYS else _PAUSE_BEATS * settings.beat_s


def sweep_results(session: Session, settings: Settings) -> float:
    """Delete results whose time has passed, one bounded chunk at a time; comes back at once while there are more."""
    return 0.0 if results.sweep(session, _CHUNK) == _CHUNK else _PAUSE_BEATS * settings.beat_s


def sweep_once(session: Session, settings: Settings) -> float:
    """The same for the keys of effects that were to happen once."""
    return 0.0 if once.sweep(session, _CHUNK) == _CHUNK else _PAUSE_BEATS * settings.beat_s


def sweep_reports(session: Session, settings: Settings) -> float:
    """The same for the progress of messages that were given up."""
    return 0.0 if reports.sweep(session, _CHUNK) == _CHUNK else _PAUSE_BEATS * settings.beat_s


def sweep_slots(session: Session, settings: Settings) -> float:
    """Delete the slots of clients that are gone; they count no more anyway."""
    limits.sweep(session)
    return _PAUSE_BEATS * settings.beat_s
