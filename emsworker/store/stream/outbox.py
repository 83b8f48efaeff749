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
from typing import NamedTuple

from emsworker.core.batches import in_batches
from emsworker.core.counted import counted
from emsworker.core.errors import AssertionBroken, Duplicate, MessageTooLarge, StatementRefused
from emsworker.core.ids import uid_text
from emsworker.core.model import NewMessage, Topic
from emsworker.core.partitioner import partition_number, partition_of
from emsworker.store.engine.session import Packet, Session
from emsworker.store.engine.sql import (
    Part,
    Sql,
    Statements,
    column,
    fill,
    fill_rows,
    identifier,
    insertion,
    join,
    literal,
    message_blobs,
)
from emsworker.store.stream.columns import MESSAGE, PLAIN
from emsworker.store.stream.guards import topic_id_text
from emsworker.store.stream.messages import find_uids, raise_counter

_SQL = Statements(__name__, **MESSAGE, **PLAIN)

log = logging.getLogger(__name__)

_LOOK_UPS = 100
_BYTES = 16 << 20  # of headers and bodies, which the server copies in one transaction
_ERROR_CHARACTERS = 4000


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
        "message": message_blobs(message.columns, message.producer_id),
        "level": message.level,
    }
    if message.due_at is None:
        return fill(_SQL.delayed_row, values | {"delay_us": round((message.delay_s or 0.0) * 1_000_000) + number})
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


def relay_due(
    session: Session, limit: int, late_s: float = 0.0, *, plain: bool = False, topics: Iterable[Topic] | None = None
) -> Round:
    """Move at most ``limit`` due messages of every topic; a topic that is moving or gone is logged and left out.

    Args:
        late_s: leave messages that have been due for less than this many seconds to others.
        plain: look for rows of ``ems_publish`` as well.
        topics: those that may have some, if that is known; it saves the search. What another server keeps is left out.
    """
    moved: dict[int, int] = {}
    next_s = math.inf
    if topics is None:
        look = find_due(session, plain=plain)
    else:
        look = Look(
            [Due(topic.id, topic.name, topic.partitions, -late_s) for topic in topics if topic.server is None], False
        )
    for due in look.due:
        if due.seconds + late_s > 0:
            next_s = min(next_s, due.seconds + late_s)
            continue
        try:
            done = relay(session, due, limit, late_s)
        except AssertionBroken as error:
            log.error("cannot relay to topic %s: %s; was it moved or deleted?", due.topic, error)
            continue
        except StatementRefused as error:
            log.error("cannot relay to topic %s yet: %s; the beat sets its counter back", due.topic, error)
            continue
        moved[due.topic_id] = done.count
        if done.more:
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


@dataclass(frozen=True)
class Relayed:
    """Outcome of one move from the outbox: how many messages have left it, and whether more may be due."""

    count: int
    more: bool


class _Waiting(NamedTuple):
    """A message of the outbox that is due, without what may be large; ``size`` is that of headers and body."""

    uid: bytes
    partition: int | None
    key: bytes | None
    level: int
    size: int

    def place(self, partitions: int) -> int:
        """Return the number of the partition that it goes to; see :meth:`NewMessage.place`."""
        if self.partition is not None:
            return partition_number(self.level, self.partition)
        return partition_number(self.level, partition_of(self.uid if self.key is None else self.key, partitions))


def relay(session: Session, due: Due, limit: int, late_s: float = 0.0) -> Relayed:
    """Move at most ``limit`` due messages of a topic into the stream, and at most 16 MiB, in one transaction.

    A message that cannot be moved is set aside as a refused row of ``ems_publish``, so that it stops no other one: a
    producer may write any row by plain SQL. What the server refuses is found by halving the batch.

    Raises:
        AssertionBroken: the topic was moved or deleted meanwhile.
        StatementRefused: a partition takes no message, because its counter was set to the end of all offsets. That is
            no fault of the messages: they wait until the beat has set it back.
    """
    try:
        return session.retry_on_conflict(lambda: _move(session, due, limit, late_s))
    except AssertionBroken:
        if not (refused := _refuse_misplaced(session, due, limit, late_s)):
            raise
        return Relayed(refused, True)
    except (StatementRefused, MessageTooLarge) as error:
        if _is_worn(error):
            raise
        if limit > 1:
            return relay(session, due, limit // 2, late_s)
        return Relayed(_refuse_first(session, due, late_s, str(error)), True)


def _is_worn(error: Exception) -> bool:
    """Return whether the constraints refuse the offset; what a row of the outbox has cannot break them."""
    return "ems_partition_sound" in str(error) or "ems_message_sound" in str(error)


def _move(session: Session, due: Due, limit: int, late_s: float) -> Relayed:
    session.begin()
    waiting = _lock_due(session, due, limit, late_s)
    if not waiting:
        session.rollback()
        return Relayed(0, False)
    batch = next(in_batches(waiting, lambda one: one.size, _BYTES))
    places: dict[int, list[bytes]] = {}
    for one in batch:
        places.setdefault(one.place(due.partitions), []).append(one.uid)
    packet = session.packet()
    for partition, uids in sorted(places.items()):
        _add_move(packet, due.topic_id, partition, uids)
    uids = [one.uid for one in batch]
    for text in delete_texts(due.topic_id, uids):
        packet.add(text)
    packet.commit()
    try:
        packet.send()
    except Duplicate:
        return Relayed(_drop_repeats(session, due.topic_id, uids), False)
    return Relayed(len(batch), len(waiting) == limit or len(batch) < len(waiting))


def _lock_due(session: Session, due: Due, limit: int, late_s: float) -> list[_Waiting]:
    args = {"topic_id": due.topic_id, "limit": limit, "late_us": round(late_s * 1e6)}
    return [_Waiting(*row) for row in session.rows(_SQL.lock_due, args)]


def _add_move(packet: Packet, topic_id: int, partition: int, uids: Sequence[bytes]) -> None:
    """Append the statements that move messages to the end of a partition, in this order."""
    raise_counter(packet, topic_id, partition, len(uids))
    offset = _SQL.raised_offset
    for first in range(0, len(uids), _LOOK_UPS):
        some = column(uids[first : first + _LOOK_UPS])
        placed = fill_rows(_SQL.placed_uid, {}, {"uid": some, "place": range(first, first + len(some))})
        parts: dict[str, Part] = {"topic_id": topic_id, "partition": partition, "offset": offset}
        packet.add(fill(_SQL.move_rows, {**parts, "uids": join(" UNION ALL ", placed)}))
        offset = _SQL.further_offset


def _refuse_misplaced(session: Session, due: Due, limit: int, late_s: float) -> int:
    """Set aside those due messages whose partition their topic does not have; returns how many."""

    def work(session: Session) -> dict[int, list[bytes]]:
        there = {int(number) for (number,) in session.rows(_SQL.list_partitions, {"topic_id": due.topic_id})}
        wrong: dict[int, list[bytes]] = {}
        for one in _lock_due(session, due, limit, late_s) if there else ():
            if (number := one.place(due.partitions)) not in there:
                wrong.setdefault(number, []).append(one.uid)
        for number, uids in wrong.items():
            _refuse_all(session, due.topic_id, uids, _no_partition(due, number))
        return wrong

    wrong = session.transaction(work)
    for number, uids in wrong.items():
        _log_refused(uids, _no_partition(due, number))
    return sum(map(len, wrong.values()))


def _no_partition(due: Due, number: int) -> str:
    why = f"topic {due.topic!r} has no partition {number}"
    return f"{why}; delete the row, or, unless it is a call, retry it to send it by its key"


def _refuse_first(session: Session, due: Due, late_s: float, why: str) -> int:
    def work(session: Session) -> list[bytes]:
        uids = [one.uid for one in _lock_due(session, due, 1, late_s)]
        _refuse_all(session, due.topic_id, uids, why)
        return uids

    uids = session.transaction(work)
    _log_refused(uids, why)
    return len(uids)


def refuse(session: Session, topic_id: int, uid: bytes, why: str) -> None:
    """Set a message of the outbox aside as a refused row of ``ems_publish``."""
    session.transaction(lambda session: _refuse_all(session, topic_id, [uid], why))
    _log_refused([uid], why)


def _refuse_all(session: Session, topic_id: int, uids: Sequence[bytes], why: str) -> None:
    for first in range(0, len(uids), _LOOK_UPS):
        some = join(" UNION ALL ", fill_rows(_SQL.moved_uid, {}, {"uid": column(uids[first : first + _LOOK_UPS])}))
        parts: dict[str, Part] = {"uids": some, "topic_id": topic_id, "error": literal(why[:_ERROR_CHARACTERS])}
        if session.execute(fill(_SQL.refuse_rows, parts)).affected != len(uids[first : first + _LOOK_UPS]):
            raise AssertionBroken("the topic of a message that is set aside was deleted")
    for text in delete_texts(topic_id, uids):
        session.execute(text)


def _log_refused(uids: Sequence[bytes], why: str) -> None:
    if uids:
        what = counted(len(uids), "message")
        log.warning(
            "%s of the outbox set aside, the first %s: %s; see `ems refused list`", what, uid_text(uids[0]), why
        )


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
