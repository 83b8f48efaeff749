"""Rows far above every other row of their partition, at offsets that no counter can have reached.

Whoever may insert messages may insert one at any offset, or raise the counter to any number; and a restored Redis may
hold a number of another stream. The hole below such a row is too long to be closed by tombstones: that would take
years, and fill the disk. So the rows are brought back to the first offset of the hole, in their order, and the counter
with them. Nobody can have read them: no group goes past a hole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from emsworker.core.offsets import OffsetRange
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements
from emsworker.store.stream import holes
from emsworker.store.stream.messages import FARTHEST, next_row

_SQL = Statements(__name__)
_STEP = 200_000  # offsets that are searched for the hole; a longer way is left to the high watermark
_LAST = (1 << 62) - (1 << 20)  # the constraints end offsets at 1 << 62; no batch takes as many
_ROWS = 100  # rows in one transaction, which publishers of the partition wait for


@dataclass(frozen=True)
class Stray:
    """A row that lies too far above the end of its partition.

    Args:
        free: the first offset of the hole below it.
        offset: where it is.
    """

    topic_id: int
    partition: int
    free: int
    offset: int


def find_strays(session: Session, gap_timeout_s: float) -> Iterator[Stray]:
    """Yield the first stray row of each partition that has any.

    Args:
        gap_timeout_s: only those at least as old; who comes later meets the primary key.
    """
    for topic_id, partition, high_watermark, end in session.rows(_SQL.list_far, {"farthest": FARTHEST}):
        start, end = int(high_watermark), int(end)
        searched = OffsetRange(topic_id, partition, start, min(end, start + _STEP))
        free = holes.find_hole(session, searched)
        neighbour = next_row(session, topic_id, partition, free) if free < searched.end else None
        if neighbour and neighbour.offset - free > FARTHEST and neighbour.age_s >= gap_timeout_s:
            yield Stray(topic_id, partition, free, neighbour.offset)


@dataclass(frozen=True)
class WornCounter:
    """The counter of a partition that stands at the end of all offsets."""

    topic_id: int
    partition: int
    next_offset: int


def find_worn(session: Session) -> list[WornCounter]:
    """Return the partitions whose counters leave no offset that can be written; no row tells of them."""
    return [WornCounter(*row) for row in session.rows(_SQL.list_worn, {"last": _LAST})]


def set_back(session: Session, worn: WornCounter) -> None:
    """Set a counter to the end of its rows; a batch that has taken offsets before cannot have been written."""
    where = {"topic_id": worn.topic_id, "partition": worn.partition}

    def work(session: Session) -> None:
        if session.rows(_SQL.lock_partition, where):
            session.change(_SQL.set_counter, where)

    session.transaction(work)


def bring_back(session: Session, stray: Stray) -> int:
    """Move a stray row, and those after it, to the offsets that are free; return how many rows were moved.

    Cursors and positions beyond the new end are set to it.

    Raises:
        Conflict: others kept a row locked; nothing was moved.
        Duplicate: a producer has taken one of these offsets meanwhile; nothing was moved.
    """
    where = {"topic_id": stray.topic_id, "partition": stray.partition}
    there = where | {"stray": stray.offset, "distance": stray.offset - stray.free, "rows": _ROWS}

    def work(session: Session) -> int:
        if not session.rows(_SQL.lock_partition, where):
            return 0
        moved = session.change(_SQL.bring_back, there)
        for statement in (_SQL.set_counter, _SQL.bring_cursors_back, _SQL.bring_positions_back):
            session.change(statement, where)
        return moved

    return session.transaction(work)
