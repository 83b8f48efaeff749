"""Copy ranges of the stream to Parquet: every row, tombstones included, and every column with information."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from emsworker.arrow import planning
from emsworker.arrow.planning import Slice
from emsworker.arrow.profile import call
from emsworker.spark.jobs.archive.reading import TIMES, schema_of

_FILE_BYTES = 128 << 20
FILE_OFFSETS = 250_000
"""Rows of a file at most."""
_FETCH_BYTES = 8 << 20


def cut(profile: str | None, dataset: str, slices: Sequence[Slice]) -> list[Slice]:
    """Split slices so that each makes a file of about 128 MiB and 250,000 offsets at most."""
    sizes = {"most_bytes": _FILE_BYTES, "most_offsets": FILE_OFFSETS}
    return call(profile, lambda session: planning.split(session, dataset, slices, **sizes))


def frame_of(
    spark: Any, profile: str | None, dataset: str, slices: Sequence[Slice], columns: Sequence[str] = ()
) -> Any:
    """Return a data frame of every row of the slices, tombstones included; each slice is one task.

    Args:
        columns: by default all columns of an archive.
    """
    from pyspark.sql.types import StructType

    schema = schema_of(dataset)
    if columns:
        schema = StructType([field for field in schema.fields if field.name in columns])
    tasks = list(slices)

    def read(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark.sql.pandas.types import to_arrow_schema

        from emsworker.arrow.batches import read as read_slice

        every: dict[str, Any] = {"cancelled": True, "tombstones": True, "fetch_bytes": _FETCH_BYTES}
        wanted = to_arrow_schema(schema, timezone="UTC")
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_slice(profile, dataset, wanted, tasks[number], **every)

    if not tasks:
        return spark.createDataFrame([], schema)
    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(read, schema)


def copy(spark: Any, profile: str | None, dataset: str, slices: Sequence[Slice], url: str) -> None:
    """Write slices as Parquet files in a folder for each day."""
    write_days(frame_of(spark, profile, dataset, slices), dataset, url)


def write_days(frame: Any, dataset: str, url: str) -> None:
    """Write rows as Parquet files in a folder for each day, sorted in each file; an existing folder is replaced.

    Spark does not commit the files of failed attempts of a task.
    """
    from pyspark.sql import functions as F

    order = {"messages": ["offset"], "claims": ["lo", "claimId"], "attempts": ["offset", "endedAt", "attempt"]}[dataset]
    (
        frame.withColumn("date", F.to_date(TIMES[dataset]))
        .sortWithinPartitions("date", "partition", *order)
        .write.mode("overwrite")
        .option("compression", "zstd")
        .partitionBy("date")
        .parquet(url)
    )
