"""The beat service that corrects times in the future, written while the server's clock was ahead of the time."""

from __future__ import annotations

import logging

from emsworker.core.config import Settings
from emsworker.core.counted import counted
from emsworker.store import Session
from emsworker.store.cluster import clients, schedules

log = logging.getLogger(__name__)

_PAUSE_S = 60.0


def correct_times(session: Session, settings: Settings) -> float:
    """Shorten leases and move schedules back, which would otherwise stand still until the time has caught up."""
    shortened = clients.shorten(session)
    moved = schedules.move_back(session)
    if shortened or moved:
        log.warning(
            "the server's clock was ahead and was set back: %s shortened, next slot computed again of %s",
            counted(shortened, "lease"),
            ", ".join(moved) or "no schedule",
        )
    return _PAUSE_S
