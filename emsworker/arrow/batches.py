"""Reading of slices as Arrow record batches."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from emsworker.arrow import scan
from emsworker.arrow.columns import LOG_APPEND_TIME
from emsworker.arrow.planning import DataLoss, Slice
from emsworker.arrow.profile import open_reading
from emsworker.extending.database import Database
from emsworker.extending.errors import UnknownTopic
from emsworker.extending.values import uid_text

Column = Callable[[Sequence[Any]], pa.Array]


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
    for fetched in scan.read(database, query, one.offsets, first_rows=left):
        if dataset == "messages" and fail_on_data_loss:
            _check_kept(fetched, one)
        if fetched.rows:
            rows = fetched.rows[:left]
            left -= len(rows)
            yield batches.batch(rows)
        if not left:
            return


def _check_kept(fetched: scan.Fetched, one: Slice) -> None:
    if fetched.log_start is None:
        raise UnknownTopic(
            f"topic {one.topic!r} was deleted while it was read; leave it out, or set failOnDataLoss=false to go on "
            "without it"
        )
    start = fetched.offsets.start
    if fetched.log_start > start:
        raise DataLoss(
            f"offsets {start} to {fetched.log_start - 1} of {one.topic}/{fetched.offsets.partition} were deleted while "
            "they were read; lengthen the topic's retention, or set failOnDataLoss=false to read what is left"
        )


class Batches:
    """Turns rows into record batches.

    Args:
        dataset: the dataset of the rows.
        schema: the columns to return.
        constants: values of the columns that are constant: topic, partition, group.
    """

    def __init__(self, dataset: str, schema: pa.Schema, constants: dict[str, Any]) -> None:
        self._schema = schema
        self.columns = scan.columns_of(dataset, schema.names)
        self._constants = {"timestampType": LOG_APPEND_TIME, **constants}
        self._makers = {name: _maker(name, schema.field(name).type) for name in self.columns}

    def batch(self, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        """Make a batch of rows, whose values are in the order of ``columns``."""
        stored = dict(zip(self.columns, zip(*rows, strict=True), strict=True)) if self.columns else {}
        arrays = [
            self._makers[field.name](stored[field.name])
            if field.name in stored
            else pa.repeat(pa.scalar(self._constants[field.name], field.type), len(rows))
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _maker(name: str, kind: pa.DataType) -> Column:
    if pa.types.is_timestamp(kind):
        return lambda values: pa.array(values, pa.int64()).cast(kind)
    if name == "headers":
        return lambda values: pa.array([_headers(value) for value in values], kind)
    if name == "uid":
        return lambda values: pa.array([None if v is None else uid_text(v) for v in values], kind)
    return lambda values: pa.array(values, kind)


def _headers(raw: bytes) -> list[tuple[str, bytes]]:
    return [(name, value.encode()) for name, value in json.loads(raw).items()] if raw else []
