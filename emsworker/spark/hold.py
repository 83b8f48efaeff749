"""The hold of a named streaming query: retention keeps the messages that its checkpoint does not have behind it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from emsworker.extending.database import Session
from emsworker.extending.stream import Hold, holds
from emsworker.extending.values import counted, format_duration, new_uid

log = logging.getLogger(__name__)

HeldPlace = tuple[int, int]
"""A topic's id, and a partition."""
_RENEWED_S = 30.0


@dataclass
class QueryHold:
    """Holds the partitions of one query, on the driver, for the life of its process.

    It holds from the offset that Spark has committed (``commit(end)``, which comes a batch late), and tells the next
    one to be read, from which the lag is counted. A process begins with the offsets of the checkpoint.

    Args:
        name: the query's name, the same at each start.
        limit_s: seconds after which the hold is lost if nothing renews it.
    """

    name: str
    limit_s: int
    _reader: bytes = field(default_factory=new_uid)
    _held: dict[HeldPlace, Hold] = field(default_factory=dict)
    _renewed: float = 0.0

    def keep(self, session: Session, offsets: Mapping[HeldPlace, int]) -> bool:
        """Hold partitions from their next offsets on; return whether any was taken just now.

        Then retention may have been faster, so the log start offsets have to be read again.

        Raises:
            HoldTaken: another query has the same name.
        """
        new = {place: self._hold(place, offset, offset) for place, offset in offsets.items() if place not in self._held}
        known = {
            place: self._hold(place, self._held[place].held_from, offsets[place]) for place in offsets.keys() - new
        }
        if new:
            holds.take(session, list(new.values()))
            self._held |= new
        return self._renew(session, known) or bool(new)

    def commit(self, session: Session, offsets: Mapping[HeldPlace, int]) -> None:
        """Give up what is below offsets that the query's checkpoint has behind it.

        Raises:
            HoldTaken: another query has the same name.
        """
        known = [(place, offset, self._held[place]) for place, offset in offsets.items() if place in self._held]
        self._renew(session, {place: self._hold(place, at, max(at, held.next_offset)) for place, at, held in known})

    def _hold(self, place: HeldPlace, held_from: int, next_offset: int) -> Hold:
        return Hold(place[0], self.name, place[1], self._reader, held_from, next_offset, self.limit_s)

    def _renew(self, session: Session, wanted: Mapping[HeldPlace, Hold]) -> bool:
        """Write what has changed, and everything from time to time; return whether a hold had to be taken again."""
        now = time.monotonic()
        due = now - self._renewed >= min(_RENEWED_S, self.limit_s / 4)
        changed = {place: one for place, one in wanted.items() if due or one != self._held[place]}
        missing = holds.renew(session, list(changed.values())) if changed else []
        self._held |= changed
        self._renewed = now if due else self._renewed
        if missing:
            self._warn(missing)
            holds.take(session, missing)
        return bool(missing)

    def _warn(self, missing: Iterable[Hold]) -> None:
        count = len(list(missing))
        log.warning(
            "reader %r takes its hold of %s again: it was released, or not renewed for %s; messages may have been "
            "deleted meanwhile",
            self.name,
            counted(count, "partition"),
            format_duration(self.limit_s),
        )
