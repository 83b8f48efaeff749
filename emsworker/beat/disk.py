"""The beat service that looks for room on the disk of the server.

While it is full, claims and ends may still be written, and only those who send would know.
"""

from __future__ import annotations

from emsworker.core.config import Settings
from emsworker.store import Session, check_room

_LOOK_BEATS = 10


def look_for_room(session: Session, settings: Settings) -> float:
    """Write as much as a message of 64 KB takes, and roll back; that there is no room is an error like others."""
    check_room(session)
    return _LOOK_BEATS * settings.beat_s
