"""Shared locks for inserts that depend on a topic, a group or a partition, held until the commit.

A name is cached for a second and an id for longer, and the topic or group may be deleted meanwhile. So each insert
takes a shared lock on a row that a deletion locks exclusively first: the insert sees the deletion, or the deletion
waits.
"""

from __future__ import annotations

import functools

from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Sql, Statements, fill, identifier

_SQL = Statements(__name__)


@functools.lru_cache(1024)  # made for every message that goes to the outbox
def topic_id_text(database: str, topic_id: int) -> Sql:
    """Return a topic's id as SQL for a row of an INSERT, which fails with AssertionBroken if the topic is deleted.

    Use it in the first row of a statement only, and not with INSERT IGNORE, which would ignore the failure.
    """
    return fill(_SQL.topic_id, {"topic_id": topic_id, "database": identifier(database)})


def kept_topic_id_text(database: str, topic_id: int) -> Sql:
    """Return a topic's id as :func:`topic_id_text` does; it also fails if another server keeps the topic by now."""
    return fill(_SQL.kept_topic_id, {"topic_id": topic_id, "database": identifier(database)})


def hold_topic(session: Session, topic_id: int) -> bool:
    """Keep a topic from being deleted before this transaction commits; return False if it is deleted."""
    return bool(session.rows(_SQL.hold_topic, {"topic_id": topic_id}))


def last_move(session: Session, topic_id: int) -> int:
    """Return the number of the last move in which a topic came to this server or left it; 0 if it never did."""
    return int(session.rows(_SQL.last_move, {"topic_id": topic_id})[0][0])


def hold_unmoved(session: Session, topic_id: int, last_move: int) -> bool:
    """Keep a topic from being moved or deleted before this transaction commits; return False if it has been since."""
    return bool(session.rows(_SQL.hold_unmoved, {"topic_id": topic_id, "last_move": last_move}))


def hold_group(session: Session, group_id: int) -> bool:
    """Keep a group from being deleted before this transaction commits; return False if it is deleted."""
    return bool(session.rows(_SQL.hold_group, {"group_id": group_id}))


def hold_partition(session: Session, topic_id: int, partition: int) -> bool:
    """Keep a partition from being deleted before this transaction commits; return False if it is deleted."""
    return bool(session.rows(_SQL.hold_partition, {"topic_id": topic_id, "partition": partition}))
