"""The messages of a group that nobody has in hand: their number, and their removal."""

from __future__ import annotations

from functools import partial

from emsworker.core.model import Group
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements
from emsworker.store.groups.cursors import list_positions, skip_to

_SQL = Statements(__name__)


def count(session: Session, group: Group) -> int:
    """Count the messages that are not claimed, or wait for another claim or a retry."""
    unclaimed = sum(max(0, one.end - one.cursor) for one in list_positions(session, group))
    return unclaimed + int(session.rows(_SQL.count_waiting, {"group_id": group.id})[0][0])


def purge(session: Session, group: Group, reason: str) -> int:
    """Skip everything that nobody has in hand; each skip is recorded. Return the number of messages.

    What is in hand, or is sent meanwhile, stays.
    """
    total = sum(skip_to(session, group, one.partition, one.end, reason) for one in list_positions(session, group))
    for work in (_skip_waiting, _skip_retries):
        while skipped := session.transaction(partial(work, group=group, reason=reason)):
            total += skipped
    return total


def _skip_waiting(session: Session, group: Group, reason: str) -> int:
    rows = session.rows(_SQL.lock_waiting, {"group_id": group.id})
    spans = [(int(partition), int(lo), int(hi)) for partition, lo, hi, _ in rows]
    for partition, lo, _, claim_id in rows:
        where = {"group_id": group.id, "partition": partition, "lo": lo, "claim_id": claim_id}
        session.execute(_SQL.delete_claim, where)
    return _record(session, group, spans, reason)


def _skip_retries(session: Session, group: Group, reason: str) -> int:
    rows = session.rows(_SQL.lock_unclaimed, {"group_id": group.id})
    spans = [(int(partition), int(lo), int(hi)) for partition, lo, hi in rows]
    for partition, lo, _ in spans:
        session.execute(_SQL.delete_retry, {"group_id": group.id, "partition": partition, "lo": lo})
    return _record(session, group, spans, reason)


def _record(session: Session, group: Group, spans: list[tuple[int, int, int]], reason: str) -> int:
    if spans:
        rows = (
            {"group_id": group.id, "partition": partition, "lo": lo, "hi": hi, "reason": reason}
            for partition, lo, hi in spans
        )
        packet = session.packet()
        packet.insert_many(_SQL.add_skips, _SQL.skip_row, rows)
        packet.send()
    return sum(hi - lo + 1 for _, lo, hi in spans)
