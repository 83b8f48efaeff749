"""Trace of one message: its claim, its attempts, its retry or its dead letter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from emsworker.core.ids import decode_key
from emsworker.core.model import ClaimState, Outcome
from emsworker.core.times import utc
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements
from emsworker.store.groups.blocking import waits_for_others
from emsworker.store.groups.dead import Place

_OUTLINE_SQL = Statements(
    __name__, headers="''", last_error="NULL", dead_error="'', ''", error="NULL"
)  # for the role viewer
_SQL = Statements(
    __name__,
    headers="LEFT(headers, 65537)",  # one more byte than a viewer decodes
    last_error="r.last_error",
    dead_error="reason, error",
    error="error",
)


@dataclass(frozen=True)
class MessageRow:
    """A message of the stream without its body; for a tombstone only the place and time are meaningful.

    ``kind`` is ``message``, ``tombstone`` or ``cancelled``.
    """

    uid: bytes | None
    kind: str
    key: str | bytes | None
    tag: str | bytes | None
    headers: bytes
    size_bytes: int
    born_at: datetime
    producer_id: str


@dataclass(frozen=True)
class ClaimRow:
    """The claim that covers an offset: its range, its owner and its times."""

    lo: int
    hi: int
    acked_to: int
    running: int | None
    state: ClaimState
    isolation: int
    client_id: str | None
    claimed_at: datetime
    progress_at: datetime


@dataclass(frozen=True)
class RetryRow:
    """A message that waits for its next attempt, or has been claimed for it.

    Attributes:
        due_at: ``None`` if it is blocked by an earlier message of its key, or by other keys of a fair group.
    """

    attempt: int
    due_at: datetime | None
    last_error: str | None
    client_id: str | None
    claimed_at: datetime | None


@dataclass(frozen=True)
class DeadNote:
    """Time and reason of a dead letter."""

    dead_at: datetime
    attempts: int
    reason: str
    error: str


@dataclass(frozen=True)
class AttemptRow:
    """A recorded attempt: one that failed, or a retry that succeeded."""

    ended_at: datetime
    attempt: int
    outcome: Outcome
    ran_ms: int | None
    client_id: str | None
    error: str | None


@dataclass(frozen=True)
class MessageHistory:
    """All that is known of one message in one group."""

    cursor: int | None
    claim: ClaimRow | None
    retry: RetryRow | None
    dead: DeadNote | None
    attempts: tuple[AttemptRow, ...]


def find_message(session: Session, topic_id: int | None, uid: bytes) -> list[tuple[int, Place]]:
    """Find a message: topic id and place; a uid may be used once in each topic.

    Args:
        topic_id: look there only; ``None`` for all topics.
    """
    statement = _SQL.find_anywhere if topic_id is None else _SQL.find_message
    rows = session.rows(statement, {"topic_id": topic_id, "uid": uid})
    return [(topic_id, (partition, offset)) for topic_id, partition, offset in rows]


def get_message(session: Session, topic_id: int, place: Place, *, details: bool = True) -> MessageRow | None:
    """Return the message at a place, or ``None``.

    Args:
        details: read its headers too, otherwise they are empty.
    """
    statement = _SQL.get_message if details else _OUTLINE_SQL.get_message
    rows = session.rows(statement, {"topic_id": topic_id, "partition": place[0], "offset": place[1]})
    if not rows:
        return None
    uid, kind, key, tag, headers, size, born_at, producer_id = rows[0]
    raw = headers if isinstance(headers, bytes) else b""
    return MessageRow(uid, kind, decode_key(key), decode_key(tag), raw, size, utc(born_at), producer_id)


def get_bounds(session: Session, topic_id: int, partition: int) -> tuple[int, int] | None:
    """Return the log start offset of a partition and one past its last row, or ``None`` if it does not exist."""
    rows = session.rows(_SQL.get_bounds, {"topic_id": topic_id, "partition": partition})
    return (int(rows[0][0]), int(rows[0][1])) if rows else None


def list_attempts(session: Session, group_id: int, place: Place) -> tuple[AttemptRow, ...]:
    """List the recorded attempts of one message in one group, in order."""
    args = {"group_id": group_id, "partition": place[0], "offset": place[1]}
    return tuple(_attempt(row) for row in session.rows(_SQL.list_attempts, args))


def _attempt(row: tuple[Any, ...]) -> AttemptRow:
    ended_at, attempt, outcome, ran_ms, client_id, error = row
    return AttemptRow(utc(ended_at), attempt, Outcome(outcome), ran_ms, client_id, error)


def get_history(session: Session, group_id: int, place: Place, *, details: bool = True) -> MessageHistory:
    """Read all that is known of one message in one group, in one packet.

    Args:
        details: read the errors and reasons too.
    """
    args = {"group_id": group_id, "partition": place[0], "offset": place[1]}
    packet = session.packet()
    statements = (
        (_SQL.get_retry, _SQL.get_dead, _SQL.list_attempts)
        if details
        else (_OUTLINE_SQL.get_retry, _OUTLINE_SQL.get_dead, _OUTLINE_SQL.list_attempts)
    )
    for statement in (_SQL.get_cursor, _SQL.find_claims, *statements):
        packet.add(statement, args)
    cursor, claims, retry, dead, attempts = (result.rows for result in packet.send())
    return MessageHistory(
        int(cursor[0][0]) if cursor else None,
        _last_claim(claims, place[1]),
        _retry(retry[0]) if retry else None,
        DeadNote(utc(dead[0][0]), *dead[0][1:]) if dead else None,
        tuple(_attempt(row) for row in attempts),
    )


def _last_claim(rows: Sequence[tuple[Any, ...]], offset: int) -> ClaimRow | None:
    """Return the claim that has yet to run the offset, or else the one that ran it last."""
    covering = [one for one in map(_claim, rows) if one.hi >= offset]
    live = [one for one in covering if one.state is not ClaimState.DONE and one.acked_to < offset]
    return max(live or covering, key=lambda one: one.progress_at, default=None)


def _claim(row: tuple[Any, ...]) -> ClaimRow:
    lo, hi, acked_to, running, state, isolation, client_id, claimed_at, progress_at = row
    return ClaimRow(
        lo, hi, acked_to, running, ClaimState(state), isolation, client_id, utc(claimed_at), utc(progress_at)
    )


def _retry(row: tuple[Any, ...]) -> RetryRow:
    attempt, due_at, last_error, client_id, claimed_at = row
    due = None if waits_for_others(due_at) else utc(due_at)
    return RetryRow(attempt, due, last_error, client_id, utc(claimed_at) if claimed_at else None)
