"""The batch reader of ``format("ems")``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from emsworker.core.errors import UnknownTopic
from emsworker.spark import planning
from emsworker.spark.arrow import Batches
from emsworker.spark.options import ReadOptions
from emsworker.spark.planning import DataLoss, ReadRange
from emsworker.spark.profile import call, open_database
from emsworker.spark.pushing import Pushed
from emsworker.store.engine.session import Session
from emsworker.store.stream import scan
from emsworker.store.stream.scan import Piece, Query


@dataclass(frozen=True)
class EmsPartition(InputPartition):
    """The input of one task."""

    piece: Piece
    topic: str
    group: str | None = None

    @classmethod
    def of(cls, one: ReadRange) -> EmsPartition:
        """Make the input partition of a range."""
        group = one.source.group
        return cls(one.piece, one.source.topic.name, group.name if group is not None else None)

    @property
    def constants(self) -> dict[str, Any]:
        """The columns that have the same value in all rows."""
        return {"topic": self.topic, "partition": self.piece.partition, "group": self.group}


@dataclass(frozen=True)
class Pack(InputPartition):
    """Small pieces that one task reads together."""

    parts: tuple[EmsPartition, ...]


class EmsReader(DataSourceReader):
    """Reads ranges of offsets; it is pickled, so connections are opened where they are used."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._schema = schema
        self._options = options
        self._pushed = Pushed()

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks once, so that all of them read the same stream.

        For messages each piece is a task. The log of the groups has a piece for each group and partition, most of them
        small: those are packed, up to partitionBytes.
        """
        return call(self._options.profile, self._tasks)

    def _tasks(self, session: Session) -> list[InputPartition]:
        pieces, options = self._plan(session), self._options
        if options.dataset == "messages" or options.min_partitions or options.max_records_per_partition:
            return [EmsPartition.of(one) for one in pieces]
        packs: list[list[EmsPartition]] = []
        room = 0
        for one in pieces:
            weight = scan.estimate_bytes(session, options.dataset, one.piece)
            if not packs or weight > room:
                packs.append([])
                room = options.partition_bytes
            packs[-1].append(EmsPartition.of(one))
            room -= weight
        return [Pack(tuple(parts)) for parts in packs]

    def _plan(self, session: Session) -> list[ReadRange]:
        options = self._options
        ranges = [
            self._pushed.narrow(session, one)
            for one in planning.plan(session, options)
            if self._pushed.wants(one.source)
        ]
        return planning.split(ranges, options, lambda one: scan.estimate_bytes(session, options.dataset, one.piece))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a piece, on an executor."""
        if isinstance(partition, Pack):
            for part in partition.parts:
                yield from read_piece(self._schema, self._options, part, self._pushed)
        elif isinstance(partition, EmsPartition):  # not Spark's placeholder if there is no piece
            yield from read_piece(self._schema, self._options, partition, self._pushed)


class FilteringReader(EmsReader):
    """A batch reader with filter pushdown; Spark refuses it unless a setting allows it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters that the store can apply exactly; return the rest to Spark."""
        return [one for one in filters if not self._pushed.take(one, self._options.dataset)]


def read_piece(
    schema: StructType, options: ReadOptions, partition: EmsPartition, pushed: Pushed | None = None
) -> Iterator[pa.RecordBatch]:
    """Read the rows of a piece as record batches.

    Raises:
        DataLoss: retention overtook the reader, and failOnDataLoss is on.
        UnknownTopic: the topic was deleted meanwhile.
    """
    batches = Batches(options.dataset, schema, partition.constants)
    window = pushed.window if pushed is not None else None
    query = Query(options.dataset, batches.columns, window, options.include_cancelled, options.fetch_bytes)
    with open_database(options.profile) as database:
        for fetched in scan.read(database, query, partition.piece):
            if options.dataset == "messages" and options.fail_on_data_loss:
                _check_kept(fetched, partition)
            if fetched.rows:
                yield batches.batch(fetched.rows)


def _check_kept(fetched: scan.Fetched, partition: EmsPartition) -> None:
    place = f"{partition.topic}/{partition.piece.partition}"
    if fetched.log_start is None:
        raise UnknownTopic(f"topic {partition.topic!r} was deleted while it was read")
    if fetched.log_start > fetched.piece.lo:
        raise DataLoss(
            f"offsets {fetched.piece.lo} to {fetched.log_start - 1} of {place} were deleted while they were read; "
            "lengthen the topic's retention, or set failOnDataLoss=false to read what is left"
        )
