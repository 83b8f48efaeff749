"""Deduplication keys in memory.

A key belongs to the first message that is sent with it, until that message is finished in every group and the window
that it was sent with is over. Whatever is sent with the key meanwhile is not stored, and answered with the holder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from emsworker.broker.memory.log import Now
from emsworker.core.model import NewMessage, Topic

DedupPlace = tuple[int, bytes]  # topic id and key


@dataclass(frozen=True)
class Holder:
    """The message that has a key, and the end of its window."""

    uid: bytes
    until: datetime


class DedupKeys:
    """The keys of all topics.

    Args:
        now: returns the time.
        is_unfinished: returns whether a message of a topic is still to be run, or to be committed.
    """

    def __init__(self, now: Now, is_unfinished: Callable[[Topic, bytes], bool]) -> None:
        self._now, self._is_unfinished = now, is_unfinished
        self._holders: dict[DedupPlace, Holder] = {}

    def take(self, topic: Topic, message: NewMessage, taken: dict[DedupPlace, Holder | None]) -> bytes | None:
        """Take the key of a message, if it has one; return the uid of the message that holds it instead.

        Args:
            taken: notes what a transaction has taken and from whom, so that :meth:`restore` can undo it.
        """
        if message.dedup_key is None:
            return None
        place = topic.id, message.dedup_key
        holder = self._holders.get(place)
        if holder is not None and holder.uid == message.uid:
            return None
        if holder is not None and (self._now() < holder.until or self._is_unfinished(topic, holder.uid)):
            return holder.uid
        taken.setdefault(place, holder)
        self._holders[place] = Holder(message.uid, self._now() + timedelta(seconds=message.dedup_window_s))
        return None

    def restore(self, taken: Mapping[DedupPlace, Holder | None]) -> None:
        """Undo what a transaction has taken."""
        for place, holder in taken.items():
            del self._holders[place]
            if holder is not None:
                self._holders[place] = holder
