"""The beat service that deletes large bodies whose messages are gone."""

from __future__ import annotations

import logging

from emsworker.core.config import Settings
from emsworker.core.counted import counted
from emsworker.store import Session
from emsworker.store.stream import large

log = logging.getLogger(__name__)

_LIMIT, _DELETIONS = 200, 10
_PAUSE_BEATS = 10


class SweepBodies:
    """Looks at all large bodies in turn, some at each call, and deletes those that no message needs.

    A message leaves by retention, a purge, a cancel or the deletion of its dead letter, its topic or its group, and
    none of them looks for a body: so a stream without large bodies pays for none.
    """

    __name__ = "sweep_bodies"

    def __init__(self) -> None:
        self._after: bytes | None = None

    def __call__(self, session: Session, settings: Settings) -> float:
        """Look at the next bodies; a pause of a beat within a round, and of ten after it."""
        found = large.look(session, self._after, _LIMIT)
        some = found.unused[:_DELETIONS]
        if deleted := sum(large.delete_unused(session, one) for one in some):
            log.info("deleted %s that no message needs any more", counted(deleted, "body"))
        if len(some) < len(found.unused):
            self._after = some[-1]
            return 0.0
        self._after = found.last
        return (_PAUSE_BEATS if found.last is None else 1) * settings.beat_s
