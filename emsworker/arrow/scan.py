"""Bulk reads of the stream by ranges of offsets, without any lock.

Rows below the *high watermark* of a partition, the first offset without a row, never change (except messages that are
cancelled before they are run), so readers that share a range between them agree although each sees another snapshot. A
slow producer may still fill a hole: no reader goes past it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emsworker.arrow.columns import COLUMNS, is_number
from emsworker.extending.database import Session, Sql, Statements, fill, join
from emsworker.extending.stream import find_hole
from emsworker.extending.values import OffsetRange

_SQL = Statements(__name__)
_LEAST_PACKED = 64 << 10  # room for the numbers of some thousand rows
ORDER = {
    "messages": ("offset",),
    "claims": ("lo", "claimId"),
    "attempts": ("offset", "endedAt", "attempt"),
    "retries": ("offset",),
    "deadletters": ("offset",),
}
"""By which columns the rows of each dataset are ordered."""
_NEVER_NULL = frozenset({"offset", "timestamp", "value"})
"""Columns of most reads that are NOT NULL in every table that has them: the server need not look."""


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


@dataclass(frozen=True)
class Packed:
    """The rows of a range as one value for each column, in the order in which the server has found them.

    A value is cut if it would be longer than the server returns.

    Attributes:
        count: the number of rows, also if a value is cut.
        numbers: the columns that are numbers.
        lines: for each row a line with these numbers, and then with the lengths of its other values, separated by
            commas; for NULL there is nothing.
        texts: by its name the values of each other column, one after another without anything between.
        log_start: the log start offset after the rows were read (``None`` if the partition is gone).
    """

    offsets: OffsetRange
    count: int
    numbers: tuple[str, ...]
    lines: bytes
    texts: Mapping[str, bytes]
    log_start: int | None

    @property
    def size(self) -> int:
        """The bytes of its texts."""
        return sum(map(len, self.texts.values()))


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


def fetch_rows(session: Session, query: Query, offsets: OffsetRange) -> Fetched:
    """Read the rows of a range one by one, in order."""
    columns = join(", ", [_value(query, name) for name in query.columns]) or _SQL.no_columns
    source, args = _source(query, offsets)
    packet = session.packet()
    order = _SQL[f"order_{query.dataset}"]
    packet.add(join("\n", [fill(_SQL.select, {"columns": columns}), *source, order]), args)
    packet.add(_SQL.get_log_start, args)
    rows, log_starts = (result.rows for result in packet.send())
    return Fetched(offsets, rows, _log_start(log_starts))


def fetch_packed(session: Session, query: Query, offsets: OffsetRange) -> Packed:
    """Read the rows of a range as one value for each column; what is longer than ``query.fetch_bytes`` is cut."""
    numbers, texts = packed_columns(query)
    source, args = _source(query, offsets)
    columns = _packs(query, numbers, texts)
    packet = session.packet()
    packet.add(_SQL.allow_packed, {"most_bytes": max(query.fetch_bytes, _LEAST_PACKED)})
    packet.add(join("\n", [fill(_SQL.select_packed, {"columns": columns}), *source]), args)
    packet.add(_SQL.get_log_start, args)
    _, packs, log_starts = (result.rows for result in packet.send())
    count, lines, *values = packs[0]
    joined = dict(zip(texts, (value or b"" for value in values), strict=True))
    return Packed(offsets, int(count), numbers, lines or b"", joined, _log_start(log_starts))


def packed_columns(query: Query) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns that are numbers, first those by which the rows are ordered, and the others."""
    every = dict.fromkeys((*ORDER[query.dataset], *query.columns))
    numbers = tuple(name for name in every if is_number(query.dataset, name))
    return numbers, tuple(name for name in every if name not in numbers)


def _packs(query: Query, numbers: Sequence[str], texts: Sequence[str]) -> Sql:
    values = {name: _value(query, name) for name in (*numbers, *texts)}
    for name in texts:
        if COLUMNS[query.dataset][name] == "string":
            values[name] = fill(_SQL.stored, {"value": values[name]})
    line = {name: values[name] for name in numbers}
    line |= {name: fill(_SQL.length, {"value": values[name]}) for name in texts}
    words = [one if name in _NEVER_NULL else fill(_SQL.or_nothing, {"value": one}) for name, one in line.items()]
    packs = [fill(_SQL.pack_lines, {"values": join(", ", words)})]
    return join(", ", packs + [fill(_SQL.pack, {"values": values[name]}) for name in texts])


def _value(query: Query, name: str) -> Sql:
    own = query.cancelled and (query.dataset, name) == ("messages", "value")
    return _SQL.value_of_any_kind if own else _SQL[f"{query.dataset}_{name}"]


def _source(query: Query, offsets: OffsetRange) -> tuple[list[Sql], dict[str, int]]:
    """Return the table and the conditions of a query, and their parameters."""
    args = query.args(offsets) | {"cancelled": int(query.cancelled), "tombstones": int(query.tombstones)}
    parts = [_SQL[f"from_{query.dataset}"]]
    if query.dataset == "messages":
        parts.append(_SQL.more_kinds if query.cancelled or query.tombstones else _SQL.only_messages)
    if query.between is not None:
        parts.append(_SQL[f"between_{query.dataset}"])
        args |= {"from_us": query.between[0], "to_us": query.between[1]}
    if query.below is not None:
        parts.append(_SQL[f"settled_{query.dataset}"])
        args |= {"below": query.below}
    return parts, args


def _log_start(rows: Sequence[Sequence[Any]]) -> int | None:
    return int(rows[0][0]) if rows else None


def columns_of(dataset: str, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the wanted columns that the tables hold; the others (topic, group ...) are constant."""
    return tuple(name for name in wanted if f"{dataset}_{name}" in _SQL)


def dbtable() -> str:
    """Return the messages as a table for Spark's JDBC source; ``place`` is the offset, ``born_us`` the microseconds."""
    return f"({_SQL.dbtable}) m"


def predicate(offsets: OffsetRange) -> str:
    """Return the condition of a range on the table of :func:`dbtable`; it contains only numbers."""
    return _SQL.predicate % offsets.args
