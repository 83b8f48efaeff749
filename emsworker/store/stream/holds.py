"""Holds: readers outside the groups, such as streaming queries, keep retention from what they have not read.

A hold belongs to a name, and a name to the process that took it last. It is in force until it is released, or until the
beat marks it as lost because it was not renewed for its limit. Retention reads holds while it has the partition's row
locked, and :func:`take` inserts one under a shared lock of that row: retention either sees the hold, or has committed
the log start offset that a reader sees after ``take``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from emsworker.core.errors import HoldTaken, TopicDeleted
from emsworker.core.times import utc
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements
from emsworker.store.stream.guards import hold_partition

_SQL = Statements(__name__)
HOLD_FOR_S = 7 * 86_400  # as Kafka keeps the offsets of a group


@dataclass(frozen=True)
class Hold:
    """A hold of a partition.

    Attributes:
        reader: identifies the process; another one that takes the name has another.
        held_from: retention keeps the messages from this offset on.
        next_offset: the offset that is read next; it may be ahead of ``held_from``.
        limit_s: the hold is lost if it is not renewed for this number of seconds.
    """

    topic_id: int
    name: str
    partition: int
    reader: bytes
    held_from: int
    next_offset: int
    limit_s: int

    @property
    def args(self) -> dict[str, Any]:
        """The parameters of its statements."""
        return vars(self)


@dataclass(frozen=True)
class HoldRow:
    """A hold as lists show it.

    Attributes:
        lag: messages from ``next_offset`` to the end of the partition.
        age_s: seconds since it was renewed; left_s: seconds until it expires, 0 if it is lost.
    """

    topic: str
    name: str
    partition: int
    held_from: int
    next_offset: int
    lag: int
    renewed_at: datetime
    expires_at: datetime
    lost_at: datetime | None
    age_s: float
    left_s: float


@dataclass(frozen=True)
class ExpiredHold:
    """A hold that was not renewed for its limit."""

    topic: str
    topic_id: int
    name: str
    partition: int
    held_from: int
    limit_s: int


def take(session: Session, holds: Sequence[Hold]) -> None:
    """Take holds over, or create them. A log start offset that is read afterwards is not raised above ``held_from``.

    Raises:
        TopicDeleted: a partition no longer exists.
    """

    def work(session: Session) -> None:
        for hold in sorted(holds, key=_place):
            if not hold_partition(session, hold.topic_id, hold.partition):
                raise TopicDeleted(hold.name, of_reader=True)
            session.execute(_SQL.take, hold.args)

    session.transaction(work)


def renew(session: Session, holds: Sequence[Hold]) -> list[Hold]:
    """Renew holds and move them forward; return those that are no longer in force, and have to be taken again.

    Raises:
        HoldTaken: another process has taken the name.
    """

    def work(session: Session) -> list[Hold]:
        return [hold for hold in sorted(holds, key=_place) if not session.execute(_SQL.renew, hold.args).affected]

    missing = session.transaction(work)
    for hold in missing:
        owner = session.rows(_SQL.get_reader, hold.args)
        if owner and owner[0][0] != hold.reader:
            raise HoldTaken(
                f"reader {hold.name!r} runs twice: another query has taken its hold of partition {hold.partition}; "
                "give each query a holdName of its own"
            )
    return missing


def _place(hold: Hold) -> tuple[int, int]:
    return hold.topic_id, hold.partition


def list_holds(session: Session, topic: str | None = None) -> list[HoldRow]:
    """List every hold, or those of one topic, by topic, name and partition."""
    return [_row(*row) for row in session.rows(_SQL.list_holds, {"topic": topic})]


def _row(
    topic: str, name: str, partition: int, held_from: int, next_offset: int, end: Any,
    renewed: Any, expires: Any, lost: Any, age_s: Any, left_s: Any,
) -> HoldRow:  # fmt: skip
    return HoldRow(
        topic,
        name,
        partition,
        held_from,
        next_offset,
        lag=max(0, int(end) - next_offset),
        renewed_at=utc(renewed),
        expires_at=utc(expires),
        lost_at=None if lost is None else utc(lost),
        age_s=max(0.0, float(age_s)),
        left_s=0.0 if lost is not None else max(0.0, float(left_s)),
    )


def list_ends(session: Session, topic_id: int) -> dict[int, int]:
    """Return the offset after the last message of each partition of a topic."""
    return {int(partition): int(end) for partition, end in session.rows(_SQL.list_ends, {"topic_id": topic_id})}


def release(session: Session, topic_id: int, name: str) -> int:
    """Delete the holds of a name; return how many partitions it held."""
    return session.change(_SQL.release, {"topic_id": topic_id, "name": name})


def mark_lost(session: Session) -> list[ExpiredHold]:
    """Mark the holds that were not renewed in time, and return them; retention goes on without them."""
    found = [ExpiredHold(*row) for row in session.rows(_SQL.list_expired)]
    return [one for one in found if session.change(_SQL.mark_lost, vars(one))]


def delete_lost(session: Session, age_s: int) -> int:
    """Delete holds that were lost at least ``age_s`` seconds ago; return how many."""
    return session.change(_SQL.delete_lost, {"age_s": age_s})
