"""Beat services that look at the server: which connections block others by locks, and if there is room on its disk.

No role of EMS holds a lock for long, but an open transaction of a person may, and on MariaDB the right to read a table
is enough to lock its rows. A send waits until a locked partition is free, so the log names the connection to end.

While the disk is full, claims and ends may still be written, and only those who send would know.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from emsworker.core.config import Settings
from emsworker.core.errors import AccessDenied
from emsworker.core.process.clock import ticks
from emsworker.store import Session, check_room, server_facts
from emsworker.store.inspect.locks import LockHolder, list_holders

log = logging.getLogger(__name__)

_LOOK_BEATS, _ROOM_BEATS = 2, 10
_REFUSED_S = 300.0  # until it is tried again whether this user may see locks
_LONG_S = 5.0
_FORGET_S = 5.0  # a waiter that gives up and tries again is away for a moment


@dataclass
class _Held:
    """A lock for which others wait, since they were first seen waiting."""

    since: float
    seen: float
    next_line: float


class WatchLocks:
    """The service.

    Attributes:
        held_s: seconds for which the oldest of these locks has blocked others; 0 if there is none.
    """

    def __init__(self) -> None:
        self.held_s = 0.0
        self._held: dict[tuple[int, int], _Held] = {}
        self._is_mariadb: bool | None = None

    def __call__(self, session: Session, settings: Settings) -> float:
        """Look once, and log what has lasted too long: at 5 s, 10 s, 20 s and so on, and when it is over."""
        if self._is_mariadb is None:
            self._is_mariadb = server_facts(session).is_mariadb
        try:
            holders = list_holders(session, is_mariadb=self._is_mariadb)
        except AccessDenied:
            self.held_s, self._held = 0.0, {}
            return _REFUSED_S
        now = ticks()
        for holder in holders:
            self._note(holder, now)
        for key in [key for key, held in self._held.items() if now - held.seen > _FORGET_S]:
            self._forget(key, self._held.pop(key))
        self.held_s = max((now - held.since for held in self._held.values()), default=0.0)
        return _LOOK_BEATS * settings.beat_s

    def _note(self, holder: LockHolder, now: float) -> None:
        held = self._held.setdefault(_key(holder), _Held(now, now, now + _LONG_S))
        held.seen = now
        if now >= held.next_line:
            held.next_line = now + (now - held.since)
            log.warning(
                "connection %d of %s@%s has held up others for %.0f s by a lock on %s; %d wait, and KILL %d ends it",
                holder.connection_id,
                holder.user,
                holder.host,
                now - held.since,
                holder.table,
                holder.waiting,
                holder.connection_id,
            )

    def _forget(self, key: tuple[int, int], held: _Held) -> None:
        if held.seen - held.since >= _LONG_S:
            log.warning("connection %d no longer holds up others, after %.0f s", key[1], held.seen - held.since)


def _key(holder: LockHolder) -> tuple[int, int]:
    return holder.transaction_id, holder.connection_id


def look_for_room(session: Session, settings: Settings) -> float:
    """Write as much as a message of 64 KB takes, and roll back; that there is no room is an error like others."""
    check_room(session)
    return _ROOM_BEATS * settings.beat_s
