"""Beat duties that remove what has served its time."""

from __future__ import annotations

from emsworker.core.config import Settings
from emsworker.store import once, results
from emsworker.store.session import Session

_CHUNK = 1000


def sweep_results(session: Session, settings: Settings) -> float:
    """Delete results whose time has passed, one bounded chunk at a time; comes back at once while there are more."""
    return 0.0 if results.sweep(session, _CHUNK) == _CHUNK else settings.beat_s


def sweep_once(session: Session, settings: Settings) -> float:
    """The same for the keys of effects that were to happen once."""
    return 0.0 if once.sweep(session, _CHUNK) == _CHUNK else settings.beat_s
