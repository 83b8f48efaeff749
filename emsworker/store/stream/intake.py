"""Rows of ``ems_publish``: messages that other programs have written by plain SQL.

Each row is either waiting, or refused with the reason why. What takes it in deletes it in the transaction that writes
the message, so it is in exactly one of the two tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from emsworker.core.times import utc
from emsworker.store.engine.session import Packet, Session
from emsworker.store.engine.sql import Sql, Statements, column, fill, fill_rows, join

_SQL = Statements(__name__)
_ERROR_CHARACTERS = 4000
_LOOK_UPS = 100


@dataclass(frozen=True)
class Waiting:
    """A waiting row without its body; ``size`` is that of body and headers, in bytes."""

    id: int
    topic: str
    size: int


@dataclass(frozen=True)
class PlainRow:
    """A message as another program has written it."""

    id: int
    topic: str
    body: str
    key: str | None
    tag: str | None
    headers: str | None
    task: str | None
    priority: int | None
    delay_s: float | None
    uid: str | None


@dataclass(frozen=True)
class RefusedRow:
    """A row that cannot be sent as it is; times are UTC.

    Attributes:
        size: the body's, in bytes.
        error: what is wrong, and what to do.
        task, key, size, error: ``None`` also if they were not read.
    """

    id: int
    topic: str
    task: str | None
    key: str | None
    size: int | None
    created_at: datetime
    refused_at: datetime
    error: str | None


def lock_waiting(session: Session, limit: int) -> list[Waiting]:
    """Lock the oldest waiting rows until the end of the transaction."""
    rows = session.rows(_SQL.lock_waiting, {"limit": limit})
    return [Waiting(int(row), topic, int(size)) for row, topic, size in rows]


def read_rows(session: Session, ids: Sequence[int]) -> list[PlainRow]:
    """Read rows with their bodies, in order of their ids."""
    return [PlainRow(*row) for row in session.rows(_SQL.read_rows, {"ids": list(ids)})] if ids else []


def add_deletion(packet: Packet, ids: Sequence[int]) -> None:
    """Append the deletion of rows that have been taken in."""
    for chosen in _parts(ids):
        packet.add(fill(_SQL.delete_rows, {"ids": chosen}))


def add_refusal(packet: Packet, row: int, error: str) -> None:
    packet.add(_SQL.refuse_row, {"id": row, "error": error[:_ERROR_CHARACTERS]})


def outline_refused(session: Session, after: int, limit: int) -> list[RefusedRow]:
    """List refused rows as :func:`list_refused` does, by columns that the role ``viewer`` may read."""
    rows = session.rows(_SQL.outline_refused, {"after": after, "limit": limit})
    return [
        RefusedRow(int(row), topic, None, None, None, utc(created_at), utc(refused_at), None)
        for row, topic, created_at, refused_at in rows
    ]


def list_refused(session: Session, after: int, limit: int) -> list[RefusedRow]:
    """List refused rows with higher ids than ``after``, in order."""
    rows = session.rows(_SQL.list_refused, {"after": after, "limit": limit})
    return [
        RefusedRow(int(row), topic, task, key, int(size), utc(created_at), utc(refused_at), error)
        for row, topic, task, key, size, created_at, refused_at, error in rows
    ]


def count_refused(session: Session, limit: int = 1000) -> int:
    """Count the refused rows; ``limit`` stands for itself or more."""
    return int(session.rows(_SQL.count_refused, {"limit": limit})[0][0])


def count_waiting(session: Session, limit: int = 1000) -> int:
    """Count the rows that are neither sent nor refused, up to ``limit``."""
    return int(session.rows(_SQL.count_waiting, {"limit": limit})[0][0])


def find_refused(session: Session, after: int, limit: int) -> list[int]:
    """List the ids of refused rows, those above ``after``, in order."""
    return [int(row) for (row,) in session.rows(_SQL.find_refused, {"after": after, "limit": limit})]


def retry(session: Session, ids: Sequence[int]) -> int:
    """Let refused rows wait again; returns how many."""
    return sum(session.change(fill(_SQL.retry_rows, {"ids": chosen})) for chosen in _parts(ids))


def delete(session: Session, ids: Sequence[int]) -> int:
    """Delete refused rows; returns how many."""
    return sum(session.change(fill(_SQL.delete_refused, {"ids": chosen})) for chosen in _parts(ids))


def delete_old(session: Session, keep_s: float, limit: int) -> int:
    """Delete at most ``limit`` rows that were refused longer ago; returns how many."""
    return session.change(_SQL.delete_old, {"keep_s": keep_s, "limit": limit})


def delete_surplus(session: Session, keep_rows: int, keep_bytes: int, limit: int) -> int:
    """Delete at most ``limit`` refused rows, the oldest, if there are more than to keep; returns how many."""
    args = {"keep_rows": keep_rows, "keep_bytes": keep_bytes, "look": keep_rows + limit}
    surplus = min(int(session.rows(_SQL.count_surplus, args)[0][0]), limit)
    return session.change(_SQL.delete_oldest, {"limit": surplus}) if surplus else 0


def _parts(ids: Sequence[int]) -> Iterator[Sql]:
    """Yield tables of a few ids each, to join with."""
    for first in range(0, len(ids), _LOOK_UPS):
        some = {"id": column(ids[first : first + _LOOK_UPS])}
        yield join(" UNION ALL ", fill_rows(_SQL.one_id, {}, some))
