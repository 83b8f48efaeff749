"""The outbox: delayed messages and messages of a transaction, moved into the stream when due and committed.

The relay moves a batch in one transaction: allocate, insert, delete. Until its commit the messages are in the outbox,
then in the stream; after a crash they are in exactly one of the two. It holds up no publisher: the offset counter is
locked only inside its last packet, never while the relay computes.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from zlib import crc32

from emsworker.core.errors import MessageTooLarge
from emsworker.core.model import NewMessage
from emsworker.store.engine.errors import AssertionBroken, Duplicate
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import (
    Part,
    Sql,
    Statements,
    blobs,
    column,
    fill,
    fill_rows,
    identifier,
    insertion,
    join,
    literal,
)
from emsworker.store.stream.columns import MESSAGE
from emsworker.store.stream.guards import topic_id_text
from emsworker.store.stream.messages import PartitionBatch, Placement, add_batch, find_uids

_SQL = Statements(__name__, **MESSAGE)

log = logging.getLogger(__name__)

_LOOK_UPS = 100


@dataclass(frozen=True)
class Due:
    """A topic with messages in the outbox: the first is due in ``seconds`` (negative if it is late)."""

    topic_id: int
    topic: str
    partitions: int
    seconds: float


@dataclass(frozen=True)
class Look:
    """Answer of one look at what waits to be moved.

    Attributes:
        due: the topics with messages in the outbox.
        plain: rows of ``ems_publish`` wait for the intake; false if the look did not ask.
    """

    due: list[Due]
    plain: bool


@dataclass(frozen=True)
class Round:
    """Outcome of one round of the relay.

    Attributes:
        topic_ids: the topics that got messages.
        next_s: seconds until the next message is due.
        plain: see :class:`Look`.
    """

    topic_ids: set[int]
    next_s: float
    plain: bool


def insert_text(database: str, topic_id: int, messages: Sequence[NewMessage]) -> Sql:
    """Return the complete statement that inserts messages into the outbox: no parameters, no ``%``, no raw user text.

    It allocates no offset and takes no lock that others need, so it may be part of a long transaction: only the topic's
    deletion waits for it. Its times are UTC, whatever the time zone of the connection.

    It fails with AssertionBroken if the topic was deleted.
    """
    guarded = topic_id_text(database, topic_id)
    rows = [_row(message, guarded if number == 0 else topic_id, number) for number, message in enumerate(messages)]
    return insertion(_head(database), rows, _SQL.keep_first)


def _row(message: NewMessage, topic_id: Part, number: int) -> Sql:
    """Return a row of the outbox; a microsecond per row keeps rows that are due at the same time in order."""
    values: dict[str, Part] = {
        "topic_id": topic_id,
        "partition": literal(message.partition),
        "message": blobs((*message.columns, message.producer_id.encode())),
        "level": message.level,
    }
    if message.due_at is None:
        return fill(_SQL.delayed_row, values | {"delay_us": round(message.delay_s * 1_000_000) + number})
    due_at = literal(message.due_at.replace(tzinfo=None).isoformat(" ", "microseconds"))
    return fill(_SQL.timed_row, values | {"due_at": due_at, "number": number})


@functools.cache
def _head(database: str) -> Sql:
    return fill(_SQL.insert_outbox, {"database": identifier(database)})


def find_kept(session: Session, topic_id: int, uids: Sequence[bytes]) -> set[bytes]:
    """Return the uids of those messages that are in the outbox or in the stream."""
    rows = session.rows(_SQL.find_outbox, {"topic_id": topic_id, "uids": list(uids)})
    # The outbox is read first, because the relay moves messages from it into the stream.
    return {row[0] for row in rows} | set(find_uids(session, topic_id, uids))


def relay_due(session: Session, limit: int, late_s: float = 0.0, *, plain: bool = False) -> Round:
    """Move at most ``limit`` due messages of every topic; a topic that cannot take them is logged and left out.

    Args:
        late_s: leave messages that have been due for less than this many seconds to others.
        plain: look for rows of ``ems_publish`` as well.
    """
    moved: dict[int, int] = {}
    next_s = math.inf
    look = find_due(session, plain=plain)
    for due in look.due:
        if due.seconds + late_s > 0:
            next_s = min(next_s, due.seconds + late_s)
            continue
        try:
            moved[due.topic_id] = relay(session, due, limit, late_s)
        except AssertionBroken as error:
            log.error("cannot relay to topic %s: %s; was a partition deleted?", due.topic, error)
            continue
        except MessageTooLarge as error:  # the limit has been lowered since the insert
            log.error("cannot relay to topic %s: %s", due.topic, error)
            continue
        if moved[due.topic_id] == limit:
            next_s = 0.0
    return Round({topic_id for topic_id, count in moved.items() if count}, next_s, look.plain)


def find_due(session: Session, *, plain: bool = False) -> Look:
    """Find all topics with messages in the outbox, in one statement.

    Args:
        plain: look for rows of ``ems_publish`` in the same statement; only a beat has the privilege.
    """
    found = session.rows(join(" UNION ALL ", (_SQL.find_due, _SQL.find_plain)) if plain else _SQL.find_due)
    due = [Due(int(topic_id), topic, int(partitions), float(s)) for topic_id, topic, partitions, s in found if topic_id]
    return Look(due, plain=len(due) < len(found))


def relay(session: Session, due: Due, limit: int, late_s: float = 0.0) -> int:
    """Move at most ``limit`` due messages of a topic into the stream, in one transaction; returns how many."""

    def work(session: Session) -> int:
        session.begin()
        rows = session.rows(_SQL.lock_due, {"topic_id": due.topic_id, "limit": limit, "late_us": round(late_s * 1e6)})
        if not rows:
            session.rollback()
            return 0
        packet = session.packet()
        messages = [
            NewMessage.of(columns, partition=partition, level=level, producer_id=producer_id)
            for partition, producer_id, level, *columns in rows
        ]
        for batch in _batches(messages, due):
            add_batch(packet, batch)
        uids = [message.uid for message in messages]
        for text in delete_texts(due.topic_id, uids):
            packet.add(text)
        packet.commit()
        try:
            packet.send()
        except Duplicate:
            return _drop_repeats(session, due.topic_id, uids)
        return len(rows)

    return session.retry_on_conflict(lambda: work(session))


def _batches(messages: Iterable[NewMessage], due: Due) -> list[PartitionBatch]:
    places: dict[int, list[NewMessage]] = {}
    for message in messages:
        places.setdefault(message.place(due.partitions, crc32(message.uid)), []).append(message)
    return [PartitionBatch(due.topic_id, place, messages, Placement()) for place, messages in sorted(places.items())]


def _drop_repeats(session: Session, topic_id: int, uids: Sequence[bytes]) -> int:
    """Delete the messages that were also sent to the stream directly, with the same uid; returns how many."""
    landed = list(find_uids(session, topic_id, uids))
    for text in delete_texts(topic_id, landed):
        session.change(text)
    return len(landed)


def delete_texts(topic_id: int, uids: Sequence[bytes]) -> Iterator[Sql]:
    """Yield the statements that delete messages of a topic from the outbox."""
    for first in range(0, len(uids), _LOOK_UPS):
        some = {"uid": column(uids[first : first + _LOOK_UPS])}
        moved = join(" UNION ALL ", fill_rows(_SQL.moved_uid, {}, some))
        yield fill(_SQL.delete_moved, {"moved_uids": moved, "topic_id": topic_id})
