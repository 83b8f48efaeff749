"""The log in memory: partitions that only grow, and messages that are not due yet.

A message is stored once: a second one with its uid is answered with the place of the first. Offsets count from 1
inside a partition, in the order in which messages became due, and have no holes.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from emsworker.core.codec import Decoder
from emsworker.core.ids import uid_text
from emsworker.core.model import Message, NewMessage, Receipt, Topic
from emsworker.core.partitioner import partition_number

Now = Callable[[], datetime]


@dataclass
class KeptMessage:
    """A message of the stream, or on its way there.

    Attributes:
        partition, offset: its place; the offset is 0 until it is due.
        due_at: the time from which it may be read.
    """

    topic: Topic
    new: NewMessage
    due_at: datetime
    partition: int = 0
    offset: int = 0
    cancelled: bool = False

    def read(self, decoder: Decoder, attempt: int) -> Message:
        """Return the message as a handler gets it."""
        new, born_at = self.new, self.due_at.replace(tzinfo=None).isoformat()
        row = (self.offset, *new.columns, born_at)
        return Message(self.topic.name, self.partition, row, decoder, attempt)


class MessageLog:
    """The messages of all topics.

    Args:
        now: returns the time.

    Attributes:
        accepted: every message that was stored, in order.
    """

    def __init__(self, now: Now) -> None:
        self._now = now
        self._partitions: dict[tuple[int, int], list[KeptMessage]] = {}  # by topic id and number
        self._later: list[tuple[datetime, int, KeptMessage]] = []
        self._numbers = itertools.count(1)
        self._by_uid: dict[tuple[int, bytes], KeptMessage] = {}
        self.accepted: list[KeptMessage] = []

    def accept(self, topic: Topic, message: NewMessage) -> Receipt:
        """Store a message: in its partition if it is due, otherwise until it is."""
        known = self._by_uid.get((topic.id, message.uid))
        if known is not None:
            return Receipt(uid_text(message.uid), topic.name, known.partition, known.offset or None, created=False)
        now = self._now()
        kept = KeptMessage(topic, message, message.due_at or now + timedelta(seconds=message.delay_s or 0.0))
        self._by_uid[topic.id, message.uid] = kept
        self.accepted.append(kept)
        if kept.due_at > now:
            heapq.heappush(self._later, (kept.due_at, next(self._numbers), kept))
            return Receipt(uid_text(message.uid), topic.name, None, None)
        self._append(kept)
        return Receipt(uid_text(message.uid), topic.name, kept.partition, kept.offset)

    def relay(self) -> None:
        """Move messages that are due by now into their partitions."""
        while self._later and self._later[0][0] <= self._now():
            self._append(heapq.heappop(self._later)[2])

    def _append(self, kept: KeptMessage) -> None:
        kept.partition = partition_number(kept.new.level, 0)
        rows = self._partitions.setdefault((kept.topic.id, kept.partition), [])
        rows.append(kept)
        kept.offset = len(rows)

    def next_due(self) -> datetime | None:
        """Return when the next message is due, or ``None``."""
        return self._later[0][0] if self._later else None

    def end(self, topic_id: int, partition: int) -> int:
        """Return the last offset of a partition, 0 if it is empty."""
        return len(self._partitions.get((topic_id, partition), ()))

    def partitions(self, topic_id: int) -> list[int]:
        """Return the numbers of the partitions that have messages."""
        return [number for one, number in self._partitions if one == topic_id]

    def at(self, topic_id: int, partition: int, offset: int) -> KeptMessage:
        """Return the message of a place."""
        return self._partitions[topic_id, partition][offset - 1]

    def known(self, topic_id: int, uid: bytes) -> KeptMessage | None:
        """Return the message with a uid, or ``None``."""
        return self._by_uid.get((topic_id, uid))

    def find(self, uid: bytes, topic: str | None) -> KeptMessage | None:
        """Return the message with a uid in a topic, or in any, or ``None``."""
        places = (kept for (_, known), kept in self._by_uid.items() if known == uid)
        return next((kept for kept in places if topic in (None, kept.topic.name)), None)

    def cancel(self, kept: KeptMessage) -> None:
        """Let nobody read a message. One that was not due yet leaves nothing behind: its uid can be sent again."""
        kept.cancelled = True
        if not kept.offset:
            del self._by_uid[kept.topic.id, kept.new.uid]
            self._later = [one for one in self._later if one[2] is not kept]
            heapq.heapify(self._later)
