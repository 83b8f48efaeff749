"""Consistency checks that only the server can make: rows that refer to something that is gone."""

from __future__ import annotations

from dataclasses import dataclass

from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements

_SQL = Statements(__name__)


@dataclass(frozen=True)
class Orphans:
    """Rows of one group and partition that refer to nothing; ``first`` is the lowest offset among them."""

    topic_id: int
    group: str
    partition: int
    count: int
    first: int


def orphan_retries(session: Session) -> list[Orphans]:
    """List retries whose message is gone."""
    return [Orphans(*row) for row in session.rows(_SQL.list_orphan_retries)]


def ownerless_claims(session: Session, patience_s: float) -> list[Orphans]:
    """List running claims whose client is gone and that have made no progress for ``patience_s`` seconds."""
    return [Orphans(*row) for row in session.rows(_SQL.list_ownerless_claims, {"patience_s": patience_s})]


def places(session: Session) -> dict[tuple[int, int], tuple[int, int]]:
    """Return the log start offset of each partition, and how far it is deleted."""
    rows = session.rows(_SQL.list_places)
    return {
        (int(topic_id), int(number)): (int(log_start), int(trimmed)) for topic_id, number, log_start, trimmed in rows
    }
