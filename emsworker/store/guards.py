"""Guards of rows that depend on a topic, a group or a partition: whoever inserts them shares it until the commit.

A name is remembered for a second and an id for longer, and what it meant may be deleted meanwhile. So each insert is
guarded by a row that whoever deletes takes for himself first: the statement meets it, or the deletion waits.
"""

from __future__ import annotations

from emsworker.store.session import Session
from emsworker.store.sql import Statements
from emsworker.store.tables import qualified

_SQL = Statements("guards")


def topic_id_text(database: str, topic_id: int) -> str:
    """A topic's id as SQL for one of the rows of an INSERT, which fails with AssertionBroken if the topic is deleted.

    It stands in the first row of a statement only; not after INSERT IGNORE, which would ignore it.
    """
    return _SQL.topic_id % {"topic_id": topic_id, "table": qualified(database, "ems_topic_guard")}


def hold_topic(session: Session, topic_id: int) -> bool:
    """Inside a transaction: keep a topic from being deleted before the commit; false if it is deleted."""
    return bool(session.rows(_SQL.hold_topic, {"topic_id": topic_id}))


def hold_group(session: Session, group_id: int) -> bool:
    """Inside a transaction: keep a group from being deleted before the commit; false if it is deleted."""
    return bool(session.rows(_SQL.hold_group, {"group_id": group_id}))


def hold_partition(session: Session, topic_id: int, partition: int) -> bool:
    """Inside a transaction: keep a partition from being deleted before the commit; false if it is deleted."""
    return bool(session.rows(_SQL.hold_partition, {"topic_id": topic_id, "partition": partition}))
