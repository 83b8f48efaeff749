"""What only the server can tell about the order of things: rows that point at nothing."""

from __future__ import annotations

from dataclasses import dataclass

from emsworker.store.session import Session
from emsworker.store.sql import Statements

_SQL = Statements("quality")


@dataclass(frozen=True)
class Orphans:
    """Rows of one group and partition that point at nothing; ``first`` is the lowest offset among them."""

    topic_id: int
    group: str
    partition: int
    count: int
    first: int


def orphan_retries(session: Session) -> list[Orphans]:
    """Retries whose message is gone."""
    return [Orphans(*row) for row in session.rows(_SQL.list_orphan_retries)]


def ownerless_claims(session: Session, patience_s: float) -> list[Orphans]:
    """Running claims whose client is gone, and that nobody has recovered for so many seconds."""
    return [Orphans(*row) for row in session.rows(_SQL.list_ownerless_claims, {"patience_s": patience_s})]


def places(session: Session) -> dict[tuple[int, int], tuple[int, int]]:
    """The log start offset of each partition, and how far it is deleted."""
    rows = session.rows(_SQL.list_places)
    return {
        (int(topic_id), int(number)): (int(log_start), int(trimmed)) for topic_id, number, log_start, trimmed in rows
    }
