"""The beat service that brings back messages at offsets that no counter can have reached."""

from __future__ import annotations

import logging

from emsworker.core.config import Settings
from emsworker.core.counted import counted
from emsworker.core.errors import Duplicate
from emsworker.store import Session
from emsworker.store.stream.strays import bring_back, find_strays, find_worn, set_back

log = logging.getLogger(__name__)

_BEATS = 5


def bring_strays_back(session: Session, settings: Settings) -> float:
    """Bring back what lies behind a hole that is too long to be closed, and counters at the end of all offsets."""
    for worn in find_worn(session):
        set_back(session, worn)
        log.error(
            "topic %d, partition %d: its counter, %d, left no offset to write, and is set back to the end of its rows; "
            "look for who sets counters beside EMS",
            worn.topic_id,
            worn.partition,
            worn.next_offset,
        )
    found = list(find_strays(session, settings.gap_timeout_s))
    for stray in found:
        try:
            moved = bring_back(session, stray)
        except Duplicate:  # a late producer; the next look sees what is free now
            continue
        log.error(
            "topic %d, partition %d: %s at offset %d and after it, where no counter of EMS leads, brought back to "
            "offset %d; look for who inserts rows, or sets counters, beside EMS",
            stray.topic_id,
            stray.partition,
            counted(moved, "message"),
            stray.offset,
            stray.free,
        )
    return 0.0 if found else _BEATS * settings.beat_s
