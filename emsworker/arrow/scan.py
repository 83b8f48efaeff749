"""Bulk reads of the stream by ranges of offsets, without any lock.

Rows below the *high watermark* of a partition, the first offset without a row, never change (except messages that are
cancelled before they are run), so readers that share a range between them agree although each sees another snapshot. A
slow producer may still fill a hole: no reader goes past it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from emsworker.extending.database import Database, Session, Statements, fill, join
from emsworker.extending.stream import find_hole
from emsworker.extending.values import OffsetRange

_SQL = Statements(__name__)
_FIRST_ROWS, _MOST_ROWS = 2_000, 50_000


@dataclass(frozen=True)
class PartitionBounds:
    """Bounds of a partition: its first offset, up to where it is known to have no hole, and one past its last row."""

    partition: int
    log_start: int
    high_watermark: int
    end: int


@dataclass(frozen=True)
class Query:
    """Selection of rows of a dataset (``messages``, ``claims``, ``attempts``, ``retries`` or ``deadletters``).

    Attributes:
        columns: their names, as in the fragments of ``scan.sql``.
        group_id: the group whose log is read; ``None`` for messages.
        between: only messages inserted from the first time to before the second, in microseconds since 1970.
        cancelled: include cancelled messages.
        tombstones: include tombstones.
        below: of claims only those that are done and end below, of attempts those that no dead letter keeps.
        fetch_bytes: approximate limit of bytes for one fetch.
    """

    dataset: str
    columns: tuple[str, ...]
    group_id: int | None = None
    between: tuple[int, int] | None = None
    cancelled: bool = False
    fetch_bytes: int = 16 << 20
    tombstones: bool = False
    below: int | None = None

    def args(self, offsets: OffsetRange) -> dict[str, int]:
        """Return a range as parameters, with the owner of its rows, a group or else the topic."""
        return offsets.args | {"owner_id": offsets.topic_id if self.group_id is None else self.group_id}


@dataclass(frozen=True)
class Fetched:
    """The rows of a range, and the log start offset after they were read (``None`` if the partition is gone)."""

    offsets: OffsetRange
    rows: tuple[tuple[Any, ...], ...]
    log_start: int | None


def list_bounds(session: Session, topic_id: int) -> list[PartitionBounds]:
    """List the bounds of a topic's partitions."""
    rows = session.rows(_SQL.list_bounds, {"topic_id": topic_id})
    return [PartitionBounds(*map(int, row)) for row in rows]


def find_high_watermark(session: Session, bounds: PartitionBounds, offsets: OffsetRange) -> int:
    """Return the first hole in a range, or its end; the part below the known high watermark is not read."""
    return find_hole(session, offsets.part(bounds.high_watermark, offsets.end))


def find_time(session: Session, offsets: OffsetRange, time_us: int) -> int:
    """Return the first offset of a range inserted at a time (microseconds since 1970) or later, or its end."""
    start, end = offsets.start, offsets.end
    while start < end:
        middle = (start + end) // 2
        rows = session.rows(_SQL.get_next_time, offsets.args | {"start": middle, "end": end})
        if not rows or int(rows[0][1]) >= time_us:
            end = middle
        else:
            start = int(rows[0][0]) + 1
    return start


def weigh(session: Session, query: Query, offsets: OffsetRange) -> tuple[int, int]:
    """Return the number of rows and the approximate bytes of a range that is small enough to be counted."""
    rows, size = session.rows(_SQL[f"weigh_{query.dataset}"], query.args(offsets))[0]
    return int(rows), int(size)


def estimate_bytes(session: Session, query: Query, offsets: OffsetRange, samples: int = 5, sample: int = 200) -> int:
    """Estimate the bytes of a range from a few samples; the cost does not grow with the range."""
    if len(offsets) <= samples * sample:
        return weigh(session, query, offsets)[1]
    step = (len(offsets) - sample) // (samples - 1)
    starts = [offsets.start + number * step for number in range(samples)]
    size = sum(weigh(session, query, offsets.part(start, start + sample))[1] for start in starts)
    return size * len(offsets) // (samples * sample)


def read(database: Database, query: Query, offsets: OffsetRange, first_rows: int = _FIRST_ROWS) -> Iterator[Fetched]:
    """Yield the rows of a range in order, in parts of at most ``query.fetch_bytes`` or one offset.

    Each part is a separate statement: no snapshot stays open that would hold back the server's purge, and after a lost
    connection only that part is read again.

    Args:
        first_rows: offsets of the first part; the next ones are larger if they are small enough in bytes.

    Raises:
        StoreUnavailable: the server could not be reached within the time that a call may take.
    """
    start, step = offsets.start, min(first_rows, _FIRST_ROWS)
    while start < offsets.end:
        part = offsets.part(start, start + step)
        rows, size = database.call(partial(weigh, query=query, offsets=part))
        if size > query.fetch_bytes and len(part) > 1:
            step = max(1, len(part) // 2)
            continue
        yield database.call(partial(_fetch, query=query, offsets=part))
        start = part.end
        if size * 4 <= query.fetch_bytes and rows * 2 <= _MOST_ROWS:
            step = min(step * 4, _MOST_ROWS)


def _fetch(session: Session, query: Query, offsets: OffsetRange) -> Fetched:
    packet = session.packet()
    args = query.args(offsets) | {"cancelled": int(query.cancelled), "tombstones": int(query.tombstones)}
    columns = join(", ", [_SQL[f"{query.dataset}_{name}"] for name in query.columns]) or _SQL.no_columns
    statement = [fill(_SQL.select, {"columns": columns}), _SQL[f"from_{query.dataset}"]]
    if query.between is not None:
        statement.append(_SQL[f"between_{query.dataset}"])
        args |= {"from_us": query.between[0], "to_us": query.between[1]}
    if query.below is not None:
        statement.append(_SQL[f"settled_{query.dataset}"])
        args |= {"below": query.below}
    packet.add(join("\n", [*statement, _SQL[f"order_{query.dataset}"]]), args)
    packet.add(_SQL.get_log_start, args)
    rows, log_starts = (result.rows for result in packet.send())
    return Fetched(offsets, rows, int(log_starts[0][0]) if log_starts else None)


def columns_of(dataset: str, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the wanted columns that the tables hold; the others (topic, group ...) are constant."""
    return tuple(name for name in wanted if f"{dataset}_{name}" in _SQL)


def dbtable() -> str:
    """Return the messages as a table for Spark's JDBC source; ``place`` is the offset, ``born_us`` the microseconds."""
    return f"({_SQL.dbtable}) m"


def predicate(offsets: OffsetRange) -> str:
    """Return the condition of a range on the table of :func:`dbtable`; it contains only numbers."""
    return _SQL.predicate % offsets.args
