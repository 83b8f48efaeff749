"""Conversion of the store's rows to Arrow record batches with exactly the schema that Spark expects."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType, TimestampType

from emsworker.spark.columns import LOG_APPEND_TIME
from emsworker.store.stream.scan import columns_of

Column = Callable[[Sequence[Any]], pa.Array]


class Batches:
    """Turns rows into record batches.

    Args:
        dataset: the dataset of the rows.
        schema: the columns to return.
        constants: values of the columns that are constant: topic, partition, group.
    """

    def __init__(self, dataset: str, schema: StructType, constants: dict[str, Any]) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        names = [field.name for field in schema.fields]
        self.columns = columns_of(dataset, names)
        self._constants = {"timestampType": LOG_APPEND_TIME, **constants}
        times = {field.name for field in schema.fields if isinstance(field.dataType, TimestampType)}
        self._makers = {name: _maker(name, self._schema.field(name).type, name in times) for name in self.columns}

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


def _maker(name: str, kind: pa.DataType, is_time: bool) -> Column:
    if is_time:
        return lambda values: pa.array(values, pa.int64()).cast(kind)
    if name == "headers":
        return lambda values: pa.array([_headers(value) for value in values], kind)
    if name == "uid":
        return lambda values: pa.array([None if v is None else str(uuid.UUID(bytes=v)) for v in values], kind)
    return lambda values: pa.array(values, kind)


def _headers(raw: bytes) -> list[tuple[str, bytes]]:
    return [(name, value.encode()) for name, value in json.loads(raw).items()] if raw else []
