"""Chords of Celery applications: their parts are counted, and the last one ends the chord.

A part is one packet: the result of its task, the count, the part's row, the commit. The count's condition fails for the
last part; nothing of that packet is kept, and the part is counted in a longer transaction that also sends the chord's
body. So no moment exists at which all parts have arrived and the body is not sent, and no two transactions send it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from emsworker.extending.database import Session, Statements
from emsworker.extending.errors import AssertionBroken, Duplicate, MessageTooLarge
from emsworker.integrations.celery.store.results import StoredValue, add_entries, check_size

_SQL = Statements(__name__)
_LAST_NUMBER = (1 << 63) - 1  # of parts without one


@dataclass(frozen=True, slots=True)
class ChordPart:
    """The outcome of a task of a chord's header.

    Attributes:
        chord: the key of the chord.
        number: the place of the task in the header; ``None`` puts it at the end.
        task_id: of the task.
        body: the outcome.
        ttl_s: seconds to keep the chord after the last change; ``None`` for ever.
    """

    chord: bytes
    number: int | None
    task_id: bytes
    body: bytes
    ttl_s: float | None

    def values(self) -> dict[str, object]:
        """Return the parameters of its statements."""
        number = _LAST_NUMBER if self.number is None else self.number
        return {
            "key": self.chord,
            "number": number,
            "task_id": self.task_id,
            "body": self.body,
            "ttl_s": self.ttl_s,
        }


def open_chord(session: Session, key: bytes, ttl_s: float | None) -> None:
    """Begin a run of a chord, before its first task is sent."""

    def work(session: Session) -> None:
        session.execute(_SQL.open_chord, {"key": key, "ttl_s": ttl_s})
        session.execute(_SQL.delete_parts, {"key": key})

    session.transaction(work)


def set_size(session: Session, key: bytes, size: int, ttl_s: float | None) -> None:
    """Set the number of parts, before the last task is sent."""
    session.change(_SQL.set_size, {"key": key, "size": size, "ttl_s": ttl_s})


def add_one(session: Session, key: bytes, ttl_s: float | None) -> None:
    """Expect one part more."""
    session.change(_SQL.add_one, {"key": key, "ttl_s": ttl_s})


def count(session: Session, part: ChordPart, entries: Sequence[StoredValue]) -> bool:
    """Store results and count a part, in one packet.

    Returns:
        False if nothing was stored, because the part may be the last one, or was counted before: see :func:`arrive`.

    Raises:
        MessageTooLarge: a value is larger than what the server takes.
    """

    def attempt() -> None:
        packet = session.packet()
        packet.begin()
        if entries:
            add_entries(packet, entries)
        values = part.values()
        check_size(session, "the outcome of a chord's part", part.body, 2 * len(part.body) + 2048)
        packet.add(_SQL.count_part, values)
        packet.assert_one_matched()
        packet.add(_SQL.insert_part, values)
        packet.commit()
        packet.send()

    try:
        session.retry_on_conflict(attempt)
    except (AssertionBroken, Duplicate):
        return False
    return True


def arrive(session: Session, part: ChordPart, entries: Sequence[StoredValue]) -> bool:
    """Store results and count a part that may be the last one; runs in the caller's transaction.

    Returns:
        True if this was the last part: the chord is done now, and the caller takes its parts and sends its body in the
        same transaction. False if it was not, or if the chord is done.
    """
    values = part.values()
    if entries:
        packet = session.packet()
        add_entries(packet, entries)
        packet.send()
    session.execute(_SQL.create_chord, values)
    ((size, arrived, is_done),) = session.rows(_SQL.lock_chord, values)
    if is_done:
        return False
    if not session.rows(_SQL.find_part, values):
        session.execute(_SQL.insert_part, values)
        arrived += 1
        session.execute(_SQL.set_arrived, values | {"arrived": arrived})
    if size is None or arrived < size:
        return False
    session.execute(_SQL.finish_chord, values)
    return True


def take_parts(session: Session, key: bytes, max_bytes: int) -> list[bytes]:
    """Return the outcomes of all parts in the order of their numbers, and delete them.

    Raises:
        MessageTooLarge: together they have more than ``max_bytes``; they are deleted, and none has been read.
    """
    ((size,),) = session.rows(_SQL.size_parts, {"key": key})
    bodies = [body for (body,) in session.rows(_SQL.list_parts, {"key": key})] if size <= max_bytes else []
    session.execute(_SQL.delete_parts, {"key": key})
    if size > max_bytes:
        raise MessageTooLarge(f"together they have {size} bytes, at most {max_bytes} (max_message_bytes)")
    return bodies


def sweep(session: Session, limit: int) -> int:
    """Delete at most ``limit`` expired chords; returns how many."""
    keys = [key for (key,) in session.rows(_SQL.find_expired, {"limit": limit})]

    def work(session: Session, key: bytes) -> int:
        deleted = session.execute(_SQL.delete_chord, {"key": key}).affected
        if deleted:
            session.execute(_SQL.delete_parts, {"key": key})
        return deleted

    return sum(session.transaction(partial(work, key=key)) for key in keys)
