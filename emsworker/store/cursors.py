"""Moving a group's cursor by hand or by retention; what is passed over is written down in ``ems_skip``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from emsworker.core.ids import new_claim_id
from emsworker.core.model import Group
from emsworker.store.session import Session
from emsworker.store.sql import Statements

_SQL = Statements("cursors")


@dataclass(frozen=True)
class Position:
    """Where a group stands in a partition.

    Attributes:
        log_start: the first offset that is kept; end: the one after the last row.
    """

    partition: int
    log_start: int
    end: int
    cursor: int


def list_positions(session: Session, group: Group) -> list[Position]:
    """Where a group stands in each partition."""
    rows = session.rows(_SQL.list_positions, {"topic_id": group.topic_id, "group_id": group.id})
    return [Position(*map(int, row)) for row in rows]


def find_offset_at(session: Session, topic_id: int, position: Position, when: datetime) -> int:
    """The first offset of a message that was born at a time (UTC) or later: a binary search over the primary key."""
    where = {"topic_id": topic_id, "partition": position.partition, "born_at": when.replace(tzinfo=None)}
    lo, hi = position.log_start, position.end
    while lo < hi:
        middle = (lo + hi) // 2
        rows = session.rows(_SQL.get_born_from, where | {"offset": middle})
        if rows and rows[0][1]:
            lo = int(rows[0][0]) + 1
        else:
            hi = middle
    return lo


@dataclass(frozen=True)
class Held:
    """A cursor and the log start offset of its partition, both held until the commit."""

    cursor: int
    log_start: int


def hold(session: Session, group: Group, partition: int) -> Held | None:
    """In a transaction: lock a group's cursor, then the log start offset, in this order; ``None`` if it is gone."""
    where = {"topic_id": group.topic_id, "group_id": group.id, "partition": partition}
    cursor = session.rows(_SQL.lock_cursor, where)
    log_start = session.rows(_SQL.get_log_start, where)
    return Held(int(cursor[0][0]), int(log_start[0][0])) if cursor and log_start else None


def skip_to(session: Session, group: Group, partition: int, to: int, reason: str) -> int:
    """Take a group's cursor forward, never back; what is passed over is counted and written down.

    Returns:
        by how many offsets it was moved: 0 if workers have come further meanwhile, or the group is gone.
    """
    where = {"topic_id": group.topic_id, "group_id": group.id, "partition": partition}

    def work(session: Session) -> int:
        held = hold(session, group, partition)
        if held is None or held.cursor >= to:
            return 0
        return _forward(session, where, held.cursor, to, reason)

    return session.transaction(work)


def _forward(session: Session, where: dict[str, Any], cursor: int, to: int, reason: str) -> int:
    session.execute(_SQL.skip_cursor, where | {"next_offset": to})
    session.execute(_SQL.add_skip, where | {"lo": cursor, "hi": to - 1, "reason": reason})
    return to - cursor


def reset(session: Session, group: Group, partition: int, to: int, reason: str) -> int:
    """Move a group's cursor in one partition; safe while its workers run.

    Forward: what is passed over is skipped and written down; what is claimed or waits for a retry already is still run.
    Back: everything from there on is delivered again. Claims and retries behind it are taken away from their owners,
    who can finish nothing of them any more, and dead letters behind it are dead no more, so that no message is in two
    places.

    Args:
        to: the new cursor; never below the log start offset.

    Returns:
        by how many offsets it was moved, negative for back.
    """
    where = {"topic_id": group.topic_id, "group_id": group.id, "partition": partition}

    def work(session: Session) -> int:
        cursor = int(session.rows(_SQL.lock_cursor, where)[0][0])
        target = max(to, int(session.rows(_SQL.get_log_start, where)[0][0]))
        if target > cursor:
            return _forward(session, where, cursor, target, reason)
        if target < cursor:
            _take_back(session, where, target)
            session.execute(_SQL.set_cursor, where | {"next_offset": target})
        return target - cursor

    return session.transaction(work)


def _take_back(session: Session, where: dict[str, Any], offset: int) -> None:
    behind = where | {"offset": offset}
    for lo, claim_id, acked_to, isolation in session.rows(_SQL.list_live_behind, behind):
        session.execute(_SQL.delete_claim, where | {"lo": lo, "claim_id": claim_id})
        done = min(acked_to, offset - 1)
        parts = ((lo, done, done, "done"), (done + 1, offset - 1, done, "waiting"))
        for first, last, upto, state in parts:
            if first <= last:
                part = {"lo": first, "hi": last, "acked_to": upto, "state": state, "isolation": isolation}
                session.execute(_SQL.add_claim, where | part | {"claim_id": new_claim_id()})
    claimed = sorted({row[0] for row in session.rows(_SQL.list_retry_claims_behind, behind)} - {None})
    if claimed:
        session.execute(_SQL.delete_retry_claims, where | {"claim_ids": claimed})
        session.execute(_SQL.release_retries, where | {"claim_ids": claimed})
    session.execute(_SQL.delete_retries_behind, behind)
    session.execute(_SQL.delete_dead_behind, behind)
