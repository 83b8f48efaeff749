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

from emsworker.store.engine.database import Database
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements, fill, join

_SQL = Statements(__name__)
_COUNT = 200_000  # offsets in one counting statement: a tenth of a second
_FIRST_ROWS, _MOST_ROWS = 2_000, 50_000


@dataclass(frozen=True)
class PartitionBounds:
    """Bounds of a partition: its first offset, up to where it is known to have no hole, and one past its last row."""

    partition: int
    log_start: int
    high_watermark: int
    end: int


@dataclass(frozen=True)
class ScanWindow:
    """Time range in which a message was inserted, in microseconds since 1970; ``to_us`` is exclusive."""

    from_us: int
    to_us: int


@dataclass(frozen=True)
class Query:
    """Selection of rows of a dataset (``messages``, ``claims``, ``attempts``, ``retries`` or ``deadletters``).

    Attributes:
        columns: their names, as in the fragments of ``scan.sql``.
        window: only rows of messages inserted in this time range.
        cancelled: include cancelled messages.
        tombstones: include tombstones.
        below: of claims only those that are done and end below, of attempts those that no dead letter keeps.
        fetch_bytes: approximate limit of bytes for one fetch.
    """

    dataset: str
    columns: tuple[str, ...]
    window: ScanWindow | None = None
    cancelled: bool = False
    fetch_bytes: int = 16 << 20
    tombstones: bool = False
    below: int | None = None


@dataclass(frozen=True)
class Piece:
    """A range of offsets of one partition, ``hi`` exclusive; its rows belong to a topic or to a group of it."""

    owner_id: int
    topic_id: int
    partition: int
    lo: int
    hi: int

    @property
    def args(self) -> dict[str, int]:
        """The piece as parameters."""
        where = {"owner_id": self.owner_id, "topic_id": self.topic_id, "partition": self.partition}
        return where | {"lo": self.lo, "hi": self.hi}

    def cut(self, lo: int, hi: int) -> Piece:
        """Return a part of the piece."""
        return Piece(self.owner_id, self.topic_id, self.partition, lo, hi)


@dataclass(frozen=True)
class Fetched:
    """The rows of a piece, and the log start offset after they were read (``None`` if the partition is gone)."""

    piece: Piece
    rows: tuple[tuple[Any, ...], ...]
    log_start: int | None


def list_bounds(session: Session, topic_id: int) -> list[PartitionBounds]:
    """List the bounds of a topic's partitions."""
    rows = session.rows(_SQL.list_bounds, {"topic_id": topic_id})
    return [PartitionBounds(*map(int, row)) for row in rows]


def find_hole(session: Session, topic_id: int, partition: int, lo: int, hi: int) -> int:
    """Return the first offset in ``[lo, hi)`` that has no row, or ``hi``."""

    def full(lo: int, hi: int) -> bool:
        args = {"topic_id": topic_id, "partition": partition, "lo": lo, "hi": hi}
        return int(session.rows(_SQL.count_rows, args)[0][0]) >= hi - lo

    for start in range(lo, hi, _COUNT):
        end = min(start + _COUNT, hi)
        if full(start, end):
            continue
        while end - start > 1:
            middle = (start + end) // 2
            start, end = (middle, end) if full(start, middle) else (start, middle)
        return start
    return hi


def find_high_watermark(session: Session, topic_id: int, bounds: PartitionBounds, lo: int, hi: int) -> int:
    """Return the first hole in ``[lo, hi)``, or ``hi``; the part below the known high watermark is not read."""
    known = max(lo, bounds.high_watermark)
    return find_hole(session, topic_id, bounds.partition, known, hi) if known < hi else hi


def find_time(session: Session, topic_id: int, partition: int, lo: int, hi: int, time_us: int) -> int:
    """Return the first offset in ``[lo, hi)`` inserted at a time (microseconds since 1970) or later, or ``hi``."""
    while lo < hi:
        middle = (lo + hi) // 2
        args = {"topic_id": topic_id, "partition": partition, "lo": middle, "hi": hi}
        rows = session.rows(_SQL.get_next_time, args)
        if not rows or int(rows[0][1]) >= time_us:
            hi = middle
        else:
            lo = int(rows[0][0]) + 1
    return lo


def weigh(session: Session, dataset: str, piece: Piece) -> tuple[int, int]:
    """Return the number of rows and the approximate bytes of a piece that is small enough to be counted."""
    rows, size = session.rows(_SQL[f"weigh_{dataset}"], piece.args)[0]
    return int(rows), int(size)


def estimate_bytes(session: Session, dataset: str, piece: Piece, samples: int = 5, sample: int = 200) -> int:
    """Estimate the bytes of a piece from a few samples; the cost does not grow with the piece."""
    if piece.hi - piece.lo <= samples * sample:
        return weigh(session, dataset, piece)[1]
    step = (piece.hi - piece.lo - sample) // (samples - 1)
    starts = [piece.lo + number * step for number in range(samples)]
    size = sum(weigh(session, dataset, piece.cut(start, start + sample))[1] for start in starts)
    return size * (piece.hi - piece.lo) // (samples * sample)


def read(database: Database, query: Query, piece: Piece) -> Iterator[Fetched]:
    """Yield the rows of a piece in order, in parts of at most ``query.fetch_bytes`` or one offset.

    Each part is a separate statement: no snapshot stays open that would hold back the server's purge, and after a lost
    connection only that part is read again.

    Raises:
        StoreUnavailable: the server could not be reached within the time that a call may take.
    """
    lo, step = piece.lo, _FIRST_ROWS
    while lo < piece.hi:
        part = piece.cut(lo, min(lo + step, piece.hi))
        rows, size = database.call(partial(weigh, dataset=query.dataset, piece=part))
        if size > query.fetch_bytes and part.hi - part.lo > 1:
            step = max(1, (part.hi - part.lo) // 2)
            continue
        yield database.call(partial(_fetch, query=query, piece=part))
        lo = part.hi
        if size * 4 <= query.fetch_bytes and rows * 2 <= _MOST_ROWS:
            step = min(step * 4, _MOST_ROWS)


def _fetch(session: Session, query: Query, piece: Piece) -> Fetched:
    packet = session.packet()
    args = piece.args | {"cancelled": int(query.cancelled), "tombstones": int(query.tombstones)}
    columns = join(", ", [_SQL[f"{query.dataset}_{name}"] for name in query.columns]) or _SQL.no_columns
    statement = [fill(_SQL.select, {"columns": columns}), _SQL[f"from_{query.dataset}"]]
    if query.window is not None:
        statement.append(_SQL[f"between_{query.dataset}"])
        args |= {"from_us": query.window.from_us, "to_us": query.window.to_us}
    if query.below is not None:
        statement.append(_SQL[f"settled_{query.dataset}"])
        args |= {"below": query.below}
    packet.add(join("\n", [*statement, _SQL[f"order_{query.dataset}"]]), args)
    packet.add(_SQL.get_log_start, args)
    rows, log_starts = (result.rows for result in packet.send())
    return Fetched(piece, rows, int(log_starts[0][0]) if log_starts else None)


def columns_of(dataset: str, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the wanted columns that the tables hold; the others (topic, group ...) follow from the piece."""
    return tuple(name for name in wanted if f"{dataset}_{name}" in _SQL)


def dbtable() -> str:
    """Return the messages as a table for Spark's JDBC source; ``place`` is the offset, ``born_us`` the microseconds."""
    return f"({_SQL.dbtable}) m"


def predicate(piece: Piece) -> str:
    """Return the condition of a piece on the table of :func:`dbtable`; it contains only numbers."""
    return _SQL.predicate % piece.args
