"""The beat service for fair groups that limit how many messages of a key run at once."""

from __future__ import annotations

from emsworker.core.config import Settings
from emsworker.store import Session
from emsworker.store.groups import fair

_LOOK_BEATS = 1


def restart_lanes(session: Session, settings: Settings) -> float:
    """Bring the next messages of keys whose first one was cancelled or skipped."""
    fair.restart_lanes(session)
    return _LOOK_BEATS * settings.beat_s
