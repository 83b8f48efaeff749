"""The beat service that clears rows of topics and partitions that do not exist."""

from __future__ import annotations

import logging

from emsworker.core.config import Settings
from emsworker.core.counted import counted
from emsworker.store import Session
from emsworker.store.stream import orphans

log = logging.getLogger(__name__)

_BEATS = 60
_ROUNDS = 20  # each finds the first topic of a gap; a line in the log tells of all


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
    return 0.0 if cleared else _BEATS * settings.beat_s


def _log(cleared: list[tuple[orphans.OrphanRows, orphans.Cleared]], what: str) -> None:
    if cleared:
        (where, first), rows = cleared[0], sum(done.rows for _, done in cleared)
        log.warning(
            "%s %s; the first, in %s%s", counted(rows, "row"), what, where, f": {first.why}" if first.why else ""
        )
