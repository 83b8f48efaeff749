"""The batch reader of ``format("ems")``, and its filter pushdown: unwanted rows are not read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from emsworker.arrow import batches, planning
from emsworker.arrow.options import ReadOptions
from emsworker.arrow.planning import Slice
from emsworker.arrow.pushdown import Comparison, Pushed
from emsworker.arrow.servers import read_parts
from emsworker.extending.database import Session
from emsworker.spark.brief import brief_errors

_NEVER_NULL = ("topic", "partition", "group", "offset", "lo", "timestamp")
_OPERATORS = {
    EqualTo: "==",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    In: "in",
    LessThan: "<",
    LessThanOrEqual: "<=",
}


@dataclass(frozen=True)
class SlicePartition(InputPartition):
    """The slices that one task reads."""

    slices: tuple[Slice, ...]


@brief_errors
class EmsReader(DataSourceReader):
    """Reads slices; it is pickled, so connections are opened where they are used."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._schema = schema
        self._options = options
        self._pushed = Pushed()

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks once, so that all of them read the same stream.

        For messages each slice is a task. The log of the groups has a slice for each group and partition, most of them
        small: those are packed, up to partitionBytes.
        """
        return read_parts(self._options, self._tasks)

    def _tasks(self, options: ReadOptions, session: Session) -> list[InputPartition]:
        slices = planning.split_by(session, options, planning.plan(session, options, self._pushed.narrow))
        if options.dataset == "messages" or options.min_partitions or options.max_records_per_partition:
            return [SlicePartition((one,)) for one in slices]
        packs: list[list[Slice]] = []
        room = 0
        for one in slices:
            weight = one.weigh(session, options.dataset)
            if not packs or weight > room:
                packs.append([])
                room = options.partition_bytes
            packs[-1].append(one)
            room -= weight
        return [SlicePartition(tuple(pack)) for pack in packs]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a task, on an executor."""
        return read(self._schema, self._options, partition, self._pushed.between)


@brief_errors
class FilteringReader(EmsReader):
    """A batch reader with filter pushdown; Spark refuses it unless a setting allows it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters that the store can apply exactly; return the rest to Spark."""
        return [one for one in filters if not self._take(one)]

    def _take(self, one: Filter) -> bool:
        name = ".".join(getattr(one, "attribute", ()))
        if isinstance(one, IsNotNull):
            return name in _NEVER_NULL
        operator = _OPERATORS.get(type(one))
        comparison = Comparison(name, operator or "", getattr(one, "value", None))
        return operator is not None and self._pushed.take(comparison, self._options.dataset)


def read(
    schema: StructType, options: ReadOptions, partition: InputPartition, between: tuple[int, int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Read the rows of a task, of messages only those inserted between two times.

    Raises:
        DataLoss: retention overtook the reader, and failOnDataLoss is on.
        UnknownTopic: the topic was deleted meanwhile.
    """
    columns = to_arrow_schema(schema, timezone="UTC")
    if isinstance(partition, SlicePartition):  # not Spark's placeholder if there is no slice
        for one in partition.slices:
            yield from batches.read(
                options.profile,
                options.dataset,
                columns,
                one,
                fail_on_data_loss=options.fail_on_data_loss,
                between=between,
                cancelled=options.include_cancelled,
                fetch_bytes=options.fetch_bytes,
            )
