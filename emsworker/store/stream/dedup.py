"""Idempotent publishing: one row for each key, written in the publishing transaction.

The primary key arbitrates: two producers of one key contend for its row, and the second waits until the first has
committed or rolled back. A key is taken while its window lasts, and after that until its message is finished.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from emsworker.core.times import utc
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Part, Sql, Statements, fill, identifier, literal
from emsworker.store.stream.guards import kept_topic_id_text

_SQL = Statements(__name__)
_LATER_S = 60
FORWARDED = b"\0forwarded "  # before the id of a message that was accepted from another server; senders' keys are text

Run = Callable[[Sql], Sequence[Sequence[Any]]]


@dataclass(frozen=True)
class DedupKey:
    """A key of a topic, and the minimum number of seconds for which it is taken."""

    topic_id: int
    key: bytes
    window_s: float


def take_key(
    run: Run, database: str, wanted: DedupKey, uid: bytes, is_open: Callable[[int, bytes], bool]
) -> bytes | None:
    """Take a key for a message, in the transaction that publishes it.

    Args:
        run: runs a statement in that transaction and returns its rows.
        database: where the stream's tables are.
        is_open: :func:`is_unfinished`, on another connection: the caller's snapshot may be old.

    Returns:
        ``None`` if the key is this message's now, else the uid of the message that has it.

    Raises:
        AssertionBroken: the topic was deleted, or has moved to another server.
    """
    parts: dict[str, Part] = {
        "database": identifier(database),
        "topic_id": wanted.topic_id,
        "guarded_topic_id": kept_topic_id_text(database, wanted.topic_id),
        "key": literal(wanted.key),
        "uid": literal(uid),
        "window_us": round(wanted.window_s * 1_000_000),
    }
    run(fill(_SQL.hold_key, parts))
    holder, valid = run(fill(_SQL.read_key, parts))[0]
    if holder == uid:
        return None
    if valid or is_open(wanted.topic_id, holder):
        return bytes(holder)
    run(fill(_SQL.renew_key, parts))
    return None


def find_held(session: Session, topic_id: int, keys: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return the keys that messages have on this server, where the topic was before, with the uids of the messages."""
    rows = session.rows(_SQL.find_keys, {"topic_id": topic_id, "keys": keys})
    return {bytes(key): bytes(uid) for key, uid, valid in rows if valid or is_unfinished(session, topic_id, uid)}


def is_unfinished(session: Session, topic_id: int, uid: bytes) -> bool:
    """Return whether a message is still in the outbox, or some group has not finished it."""
    args: dict[str, Any] = {"topic_id": topic_id, "uid": uid}
    if session.rows(_SQL.find_outbox, args):  # checked first: the relay moves it from the outbox to the stream
        return True
    place = session.rows(_SQL.find_place, args)
    if not place:
        return False
    partition, offset = place[0]
    return bool(session.rows(_SQL.is_unfinished, args | {"partition": partition, "offset": offset})[0][0])


def sweep(session: Session, limit: int) -> int:
    """Delete up to ``limit`` keys whose window is over and whose message is finished; return how many it checked."""
    rows = session.rows(_SQL.list_expired, {"limit": limit})
    for topic_id, key, uid in rows:
        args = {"topic_id": topic_id, "key": key, "uid": uid}
        if is_unfinished(session, topic_id, uid):
            session.execute(_SQL.look_later, args | {"later_s": _LATER_S})
        else:
            session.execute(_SQL.delete_expired, args)
    return len(rows)


def find_last(session: Session) -> tuple[str, datetime] | None:
    """Return the topic and the end of the key of a sender that counts longest; ``None`` if none counts any more."""
    rows = session.rows(_SQL.find_last, {"forwarded": FORWARDED})
    return (rows[0][0], utc(rows[0][1])) if rows else None
