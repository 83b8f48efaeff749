"""The beat service that brings back messages at offsets that no counter can have reached."""

from __future__ import annotations

import logging

from emsworker.core.config import Settings
from emsworker.store.engine.errors import Duplicate
from emsworker.store.engine.session import Session
from emsworker.store.stream.strays import bring_back, find_strays

log = logging.getLogger(__name__)

_BEATS = 5


def bring_strays_back(session: Session, settings: Settings) -> float:
    """Bring back what lies behind a hole that is too long to be closed."""
    found = list(find_strays(session, settings.gap_timeout_s))
    for stray in found:
        try:
            moved = bring_back(session, stray)
        except Duplicate:  # a late producer; the next look sees what is free now
            continue
        log.error(
            "topic %d, partition %d: %d messages were at offset %d and after it, where no counter of EMS can have put "
            "them; they are at offset %d now. Look for who inserts rows, or sets counters, beside EMS.",
            stray.topic_id,
            stray.partition,
            moved,
            stray.offset,
            stray.free,
        )
    return 0.0 if found else _BEATS * settings.beat_s
