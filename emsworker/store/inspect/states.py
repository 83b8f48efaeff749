"""States of the messages of one partition in some groups, by four statements, however long the stream is."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements

_SQL = Statements(__name__)


@dataclass(frozen=True)
class Whereabouts:
    """Cursors, claims, retries and dead letters of some groups in one partition.

    Attributes:
        cursors: the next offset that each group has not claimed.
        claims: for each claim under way the group, the offset up to which it is done, and its last one.
        retries, dead: group and offset of those that were asked for.
    """

    cursors: dict[int, int]
    claims: tuple[tuple[int, int, int], ...]
    retries: frozenset[tuple[int, int]]
    dead: frozenset[tuple[int, int]]


def find_whereabouts(
    session: Session, group_ids: Collection[int], partition: int, offsets: Collection[int]
) -> Whereabouts:
    """Return what these groups have of a partition, and of these offsets."""
    args = {"group_ids": sorted(group_ids), "partition": partition, "offsets": sorted(offsets)}
    packet = session.packet()
    for statement in (_SQL.list_cursors, _SQL.list_claims, _SQL.list_retries, _SQL.list_dead):
        packet.add(statement, args)
    cursors, claims, retries, dead = (result.rows for result in packet.send())
    return Whereabouts(dict(cursors), tuple(claims), frozenset(retries), frozenset(dead))
