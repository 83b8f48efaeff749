"""The beat services for rows where no reader looks: at offsets beyond all counters, and of topics that do not exist."""

from __future__ import annotations

import logging

from emsworker.core.config import Settings
from emsworker.core.counted import counted
from emsworker.core.errors import Duplicate
from emsworker.store import Session
from emsworker.store.stream import orphans
from emsworker.store.stream.strays import bring_back, find_strays, find_worn, set_back

log = logging.getLogger(__name__)

_BEATS, _ORPHAN_BEATS = 5, 60
_ROUNDS = 20  # each finds the first topic of a gap; a line in the log tells of all


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


def clear_orphans(session: Session, settings: Settings) -> float:
    """Set rows aside that nothing would ever read; no pause while there are more."""
    cleared: list[tuple[orphans.OrphanRows, orphans.Cleared]] = []
    for _ in range(_ROUNDS):
        some = [(one, orphans.clear(session, one)) for one in orphans.find(session).orphans]
        some = [(one, done) for one, done in some if done.rows]
        cleared += some
        if not some:
            break
    _log([(one, done) for one, done in cleared if done.why is None], "of deleted topics deleted")
    _log([(one, done) for one, done in cleared if done.why], "set aside, see `ems refused list`")
    return 0.0 if cleared else _ORPHAN_BEATS * settings.beat_s


def _log(cleared: list[tuple[orphans.OrphanRows, orphans.Cleared]], what: str) -> None:
    if cleared:
        (where, first), rows = cleared[0], sum(done.rows for _, done in cleared)
        log.warning(
            "%s %s; the first, in %s%s", counted(rows, "row"), what, where, f": {first.why}" if first.why else ""
        )
