"""Copy ranges of the stream to Parquet: every row, tombstones included, and every column with information."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from emsworker.spark.jobs.archive.checksums import TIMES
from emsworker.spark.jobs.archive.manifest import schema_of
from emsworker.spark.profile import call, open_database
from emsworker.store.stream import scan
from emsworker.store.stream.scan import Piece, Query

_FILE_BYTES, _FILE_OFFSETS = 128 << 20, 250_000
_FETCH_BYTES = 8 << 20


@dataclass(frozen=True)
class Slice:
    """A range that one task copies.

    Attributes:
        below: for the log of a group: only rows that are settled below this offset.
    """

    piece: Piece
    topic: str
    group: str | None = None
    below: int | None = None

    @property
    def constants(self) -> dict[str, Any]:
        """The columns that have the same value in all rows."""
        return {"topic": self.topic, "partition": self.piece.partition, "group": self.group}


def cut(profile: str | None, dataset: str, slices: Sequence[Slice]) -> list[Slice]:
    """Split slices so that each makes a file of about 128 MiB and 250,000 offsets at most."""
    found = []
    for one in slices:
        piece = one.piece
        weight = call(profile, partial(scan.estimate_bytes, dataset=dataset, piece=piece))
        parts = max(1, -(-weight // _FILE_BYTES), -(-(piece.hi - piece.lo) // _FILE_OFFSETS))
        edges = [piece.lo + (piece.hi - piece.lo) * number // parts for number in range(parts + 1)]
        found += [Slice(piece.cut(lo, hi), one.topic, one.group, one.below) for lo, hi in pairwise(edges) if lo < hi]
    return found


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
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _rows(profile, dataset, schema, tasks[number])

    if not tasks:
        return spark.createDataFrame([], schema)
    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(read, schema)


def copy(spark: Any, profile: str | None, dataset: str, slices: Sequence[Slice], url: str) -> None:
    """Write slices as Parquet files in a folder for each day; an existing folder is replaced.

    Spark does not commit the files of failed attempts of a task.
    """
    from pyspark.sql import functions as F

    order = {"messages": ["offset"], "claims": ["lo", "claimId"], "attempts": ["offset", "endedAt", "attempt"]}[dataset]
    (
        frame_of(spark, profile, dataset, slices)
        .withColumn("date", F.to_date(TIMES[dataset]))
        .sortWithinPartitions("date", "partition", *order)
        .write.mode("overwrite")
        .option("compression", "zstd")
        .partitionBy("date")
        .parquet(url)
    )


def _rows(profile: str | None, dataset: str, schema: Any, one: Slice) -> Iterator[Any]:
    from emsworker.spark.arrow import Batches

    batches = Batches(dataset, schema, one.constants)
    query = Query(dataset, batches.columns, cancelled=True, fetch_bytes=_FETCH_BYTES, tombstones=True, below=one.below)
    with open_database(profile) as database:
        for fetched in scan.read(database, query, one.piece):
            if fetched.rows:
                yield batches.batch(fetched.rows)
