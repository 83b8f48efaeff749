"""Moves of a group's cursor, by hand or by retention; skipped offsets are recorded in ``ems_skip``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from emsworker.core.errors import UnknownGroup
from emsworker.core.ids import new_claim_id
from emsworker.core.model import Group
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements

_SQL = Statements(__name__)


@dataclass(frozen=True)
class Position:
    """A group's position in a partition.

    Attributes:
        log_start: the first offset that is kept.
        end: the offset after the last row.
    """

    partition: int
    log_start: int
    end: int
    cursor: int


def list_positions(session: Session, group: Group) -> list[Position]:
    """Return a group's position in each partition."""
    rows = session.rows(_SQL.list_positions, {"topic_id": group.topic_id, "group_id": group.id})
    return [Position(*map(int, row)) for row in rows]


def find_offset_at(session: Session, topic_id: int, position: Position, when: datetime) -> int:
    """Return the first offset of a message created at ``when`` (UTC) or later: a binary search by primary key."""
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
    """A cursor and the log start offset of its partition, both locked until the commit."""

    cursor: int
    log_start: int


def hold(session: Session, group: Group, partition: int) -> Held | None:
    """Lock a group's cursor, then the log start offset, inside a transaction; return ``None`` if either is gone."""
    where = {"topic_id": group.topic_id, "group_id": group.id, "partition": partition}
    cursor = session.rows(_SQL.lock_cursor, where)
    log_start = session.rows(_SQL.get_log_start, where)
    return Held(int(cursor[0][0]), int(log_start[0][0])) if cursor and log_start else None


def skip_to(session: Session, group: Group, partition: int, to: int, reason: str) -> int:
    """Move a group's cursor forward, never back; skipped offsets are counted and recorded.

    Returns:
        the number of skipped offsets: 0 if workers have come further meanwhile, or the group is gone.
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

    Forward: the offsets in between are skipped and recorded; messages that are claimed or wait for a retry still run.
    Back: everything from ``to`` on is delivered again. Claims and retries from there on are taken away from their
    owners, who can no longer finish them, and dead letters from there on are no longer dead, so that no message is in
    two places.

    Args:
        to: the new cursor; never below the log start offset.

    Returns:
        the number of offsets by which it was moved, negative for back.

    Raises:
        UnknownGroup: the group was deleted meanwhile.
    """
    where = {"topic_id": group.topic_id, "group_id": group.id, "partition": partition}

    def work(session: Session) -> int:
        held = hold(session, group, partition)
        if held is None:
            raise UnknownGroup(f"group {group.name!r} was deleted meanwhile; partition {partition} was not reset")
        target = max(to, held.log_start)
        if target > held.cursor:
            return _forward(session, where, held.cursor, target, reason)
        if target < held.cursor:
            _take_back(session, where, target)
            session.execute(_SQL.set_cursor, where | {"next_offset": target})
        return target - held.cursor

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
