"""Reading of slices as Arrow record batches.

The server returns a range of rows as one value for each column, which become Arrow arrays as they are: reading row by
row takes Python's time for each value, which is most of the time of a read. A single message that is too long for that
is read as a row.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from emsworker.arrow import scan
from emsworker.arrow.columns import LOG_APPEND_TIME, is_number
from emsworker.arrow.packed import unpack
from emsworker.arrow.planning import DataLoss, Slice
from emsworker.arrow.profile import open_reading
from emsworker.extending.database import Database
from emsworker.extending.errors import UnknownTopic
from emsworker.extending.values import OffsetRange, uid_text

_FIRST_ROWS, _MOST_ROWS = 2_000, 50_000
T = TypeVar("T")


def read(
    profile: str | None,
    dataset: str,
    schema: pa.Schema,
    one: Slice,
    *,
    fail_on_data_loss: bool = False,
    **settings: Any,
) -> Iterator[pa.RecordBatch]:
    """Read the rows of a slice over a connection of its own.

    Args:
        settings: other attributes of the :class:`~emsworker.arrow.scan.Query`.

    Raises:
        DataLoss: retention overtook the reader, and ``fail_on_data_loss`` is on.
        UnknownTopic: the topic was deleted meanwhile, and ``fail_on_data_loss`` is on.
    """
    with open_reading(profile, one.server) as reading:
        if dataset == "messages":
            reading.wait_for(one.offsets)
        yield from read_from(reading.database, dataset, schema, one, fail_on_data_loss=fail_on_data_loss, **settings)


def read_from(
    database: Database,
    dataset: str,
    schema: pa.Schema,
    one: Slice,
    *,
    fail_on_data_loss: bool = False,
    limit: int | None = None,
    **settings: Any,
) -> Iterator[pa.RecordBatch]:
    """Read the rows of a slice, at most ``limit``, from an open database; otherwise as :func:`read`."""
    batches = Batches(dataset, schema, one.constants)
    query = one.query(dataset, batches.columns, **settings)
    left = sys.maxsize if limit is None else limit
    if not left:
        return
    for part in read_parts(database, batches, query, one.offsets, limit):
        if dataset == "messages" and fail_on_data_loss:
            _check_kept(part, one)
        if part.batch.num_rows:
            batch = part.batch.slice(0, left)
            left -= batch.num_rows
            yield batch
        if not left:
            return


@dataclass(frozen=True)
class ReadPart:
    """The rows of a range, and the log start offset after they were read (``None`` if the partition is gone)."""

    offsets: OffsetRange
    batch: pa.RecordBatch
    log_start: int | None


def read_parts(
    database: Database, batches: Batches, query: scan.Query, offsets: OffsetRange, limit: int | None = None
) -> Iterator[ReadPart]:
    """Yield the rows of a range in order, in parts of at most ``query.fetch_bytes`` or one offset.

    Each part is a separate statement: no snapshot stays open that would hold back the server's purge, and after a lost
    connection only that part is read again. How many offsets fit is not known before: of a part that is too large
    nothing is used, and it is read again as a smaller one.

    While a part is being used, the server packs the next one, unless there is a limit.

    Args:
        limit: the number of rows that are wanted.

    Raises:
        StoreUnavailable: the server could not be reached within the time that a call may take.
    """
    part = offsets.part(offsets.start, offsets.start + min(_FIRST_ROWS, limit or _FIRST_ROWS))
    early: Future[scan.Packed] | None = None
    with ThreadPoolExecutor(1, "ems-read") as thread:  # one, as there is one connection

        def fetch(get: Callable[..., T], part: OffsetRange) -> Future[T]:
            return thread.submit(database.call, partial(get, query=query, offsets=part))

        while part:
            packed = (early or fetch(scan.fetch_packed, part)).result()
            following, early = offsets.part(part.end, part.end + _next_step(query, packed)), None
            if following and limit is None and packed.size <= query.fetch_bytes:
                early = fetch(scan.fetch_packed, following)
            found = unpack(packed, query.fetch_bytes, scan.ORDER[query.dataset])
            if found.complete == packed.count:
                yield ReadPart(part, batches.batch(found.columns, packed.count), packed.log_start)
            elif len(part) == 1:
                rows = fetch(scan.fetch_rows, part).result()
                yield ReadPart(part, batches.batch_of(rows.rows), rows.log_start)
            else:
                fewer = len(part) * found.complete * 9 // (packed.count * 10)
                following, early = offsets.part(part.start, part.start + max(1, fewer)), None
            part = following


def _next_step(query: scan.Query, packed: scan.Packed) -> int:
    """Return how many offsets to read after those."""
    step = len(packed.offsets)
    small = packed.size * 4 <= query.fetch_bytes and packed.count * 2 <= _MOST_ROWS
    return min(step * 4, _MOST_ROWS) if small else step


def _check_kept(part: ReadPart, one: Slice) -> None:
    if part.log_start is None:
        raise UnknownTopic(
            f"topic {one.topic!r} was deleted while it was read; leave it out, or set failOnDataLoss=false to go on "
            "without it"
        )
    start = part.offsets.start
    if part.log_start > start:
        raise DataLoss(
            f"offsets {start} to {part.log_start - 1} of {one.topic}/{part.offsets.partition} were deleted while "
            "they were read; lengthen the topic's retention, or set failOnDataLoss=false to read what is left"
        )


class Batches:
    """Makes record batches of what the server returns.

    Args:
        dataset: the dataset of the rows.
        schema: the columns to return.
        constants: values of the columns that are constant: topic, partition, group.
    """

    def __init__(self, dataset: str, schema: pa.Schema, constants: dict[str, Any]) -> None:
        self._schema = schema
        self.columns = scan.columns_of(dataset, schema.names)
        self._constants = {"timestampType": LOG_APPEND_TIME, **constants}
        self._stored = {name: pa.int64() if is_number(dataset, name) else pa.binary() for name in self.columns}

    def batch(self, stored: Mapping[str, pa.Array], count: int) -> pa.RecordBatch:
        """Make a batch of the columns as they are stored: numbers as 64-bit integers, all others as binary."""
        arrays = [
            _converted(stored[field.name], field)
            if field.name in self._stored
            else pa.repeat(pa.scalar(self._constants[field.name], field.type), count)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def batch_of(self, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        """Make a batch of rows, whose values are in the order of ``columns``."""
        columns = zip(*rows, strict=True) if rows else ([] for _ in self.columns)
        stored = zip(self._stored.items(), columns, strict=True) if self.columns else ()
        return self.batch({name: pa.array(values, kind) for (name, kind), values in stored}, len(rows))


def _converted(stored: pa.Array, field: pa.Field) -> pa.Array:
    if field.name == "headers":
        return _of_each(stored, _headers, field.type)
    if field.name == "uid":
        return pa.array([None if one is None else uid_text(one) for one in stored.to_pylist()], field.type)
    if pa.types.is_string(field.type):
        return _text(stored)
    return stored.cast(field.type)


def _of_each(stored: pa.Array, convert: Callable[[bytes], Any], kind: pa.DataType) -> pa.Array:
    """Convert each of the different values once."""
    encoded = stored.dictionary_encode()
    return pa.array([convert(one) for one in encoded.dictionary.to_pylist()], kind).take(encoded.indices)


def _text(stored: pa.Array) -> pa.Array:
    """Return bytes as text; what is no UTF-8 is escaped, as wherever a text is read from the server."""
    try:
        return stored.cast(pa.string())
    except pa.ArrowInvalid:
        return _of_each(stored, lambda one: one.decode("utf-8", "backslashreplace"), pa.string())


def _headers(raw: bytes) -> list[tuple[str, bytes]]:
    return [(name, value.encode()) for name, value in json.loads(raw).items()] if raw else []
