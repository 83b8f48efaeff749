"""Beat services that delete what has expired, and correct times of what would expire too late.

These are clients, keys, results, progress reports, notices, cancels, slots, holds, refused rows of ``ems_publish``,
and old rows of the audit. Times in the future were written while the server's clock was ahead of the time.
"""

from __future__ import annotations

import logging

from emsworker.core.config import Settings
from emsworker.core.counted import counted
from emsworker.core.durations import format_duration
from emsworker.store import Session
from emsworker.store.cluster import audit, clients, schedules
from emsworker.store.expiring import EXPIRING, ExpiringRows
from emsworker.store.stream import holds, intake

log = logging.getLogger(__name__)

_CORRECT_S = 60.0
_CLIENT_BEATS = 5
_CHUNK = 1000
_REFUSED = 100
_LOST_HOLD_S = 90 * 86_400  # until then lists show it
_PAUSE_BEATS, _NONE_BEATS = 10, 30  # swept rows no longer have an effect; only their space is freed later


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
    return _CORRECT_S


def sweep_clients(session: Session, settings: Settings) -> float:
    """Delete clients whose leases have expired and whose work has been recovered."""
    swept = clients.delete_expired(session)
    if swept:
        log.info("removed %s whose lease had run out", counted(swept, "client"))
    return _CLIENT_BEATS * settings.beat_s


class Sweep:
    """Deletes expired rows of one kind, one bounded chunk at a time; no pause while there are more.

    Args:
        rows: the kind.
    """

    def __init__(self, rows: ExpiringRows) -> None:
        self.__name__ = f"sweep_{rows.name}"
        self._rows = rows

    def __call__(self, session: Session, settings: Settings) -> float:
        """Delete a chunk and return the pause."""
        most = self._rows.most
        return pause_s(self._rows.delete(session, most), most, settings, none_beats=self._rows.none_beats)


def sweep_holds(session: Session, settings: Settings) -> float:
    """End and log the holds of readers that did not renew them in time: retention no longer waits for them."""
    for one in holds.mark_lost(session):
        log.warning(
            "reader %s of topic %s has lost its hold of partition %d from offset %d on: it was not renewed for %s; "
            "retention goes on without it",
            one.name,
            one.topic,
            one.partition,
            one.held_from,
            format_duration(one.limit_s),
        )
    holds.delete_lost(session, _LOST_HOLD_S)
    return _CLIENT_BEATS * settings.beat_s


def sweep_audit(session: Session, settings: Settings) -> float:
    """Delete rows of the audit older than ``audit_keep_s``, in bounded chunks; no pause while there are more."""
    if not settings.audit_keep_s:
        return _NONE_BEATS * settings.beat_s
    return pause_s(audit.delete_old(session, settings.audit_keep_s, _CHUNK), _CHUNK, settings)


def sweep_refused(session: Session, settings: Settings) -> float:
    """Delete rows of ``ems_publish`` that were refused long ago, or are too many or too large, and say how many.

    A user with the right to insert rows can insert any number of them, of any size, for a topic that does not exist.
    """
    old = intake.delete_old(session, settings.refused_keep_s, _REFUSED) if settings.refused_keep_s else 0
    if old:
        ago = format_duration(settings.refused_keep_s)
        log.warning("deleted %s of ems_publish that had been refused for more than %s", counted(old, "row"), ago)
    keep_rows, keep_bytes = settings.refused_keep_rows, settings.refused_keep_bytes
    surplus = intake.delete_surplus(session, keep_rows, keep_bytes, _REFUSED)
    if surplus:
        log.warning(
            "deleted the oldest %s of ems_publish that had been refused: at most %s and %d bytes are kept "
            "(refused_keep_rows, refused_keep_bytes)",
            counted(surplus, "row"),
            counted(keep_rows, "row"),
            keep_bytes,
        )
    return pause_s(max(old, surplus), _REFUSED, settings)


def pause_s(swept: int, chunk: int, settings: Settings, *, none_beats: int = _NONE_BEATS) -> float:
    """Return the pause after rows were swept, in seconds: none after a full chunk, and a long one if there were none.

    Args:
        swept: the number of rows.
        chunk: the number of rows that are swept at most.
        none_beats: that long one, in beats.
    """
    return 0.0 if swept == chunk else (_PAUSE_BEATS if swept else none_beats) * settings.beat_s


SWEEPS = tuple(map(Sweep, EXPIRING))
