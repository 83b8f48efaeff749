"""The batch reader of ``format("ems")``, and its filter pushdown: unwanted rows are not read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

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
from pyspark.sql.types import StructType

from emsworker.spark import arrow, planning
from emsworker.spark.options import ReadOptions
from emsworker.spark.planning import Slice
from emsworker.spark.profile import call
from emsworker.store.engine.session import Session
from emsworker.store.stream import scan

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER_NULL = ("topic", "partition", "group", "offset", "lo", "timestamp")
_NEVER = 1 << 62
_LAST_US = 253_402_300_799_999_999  # the end of the year 9999, where DATETIME ends
# Offsets and insertion times increase together, except if a producer allocated an offset and filled it late.
_SLACK_US = 600 * 1_000_000


@dataclass(frozen=True)
class SlicePartition(InputPartition):
    """The slices that one task reads."""

    slices: tuple[Slice, ...]


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
        return call(self._options.profile, self._tasks)

    def _tasks(self, session: Session) -> list[InputPartition]:
        options = self._options
        plan = [one for one in planning.plan(session, options) if self._pushed.wants(one)]
        slices = planning.split_by(session, options, [self._pushed.narrow(session, one) for one in plan])
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


class FilteringReader(EmsReader):
    """A batch reader with filter pushdown; Spark refuses it unless a setting allows it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters that the store can apply exactly; return the rest to Spark."""
        return [one for one in filters if not self._pushed.take(one, self._options.dataset)]


def read(
    schema: StructType, options: ReadOptions, partition: InputPartition, between: tuple[int, int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Read the rows of a task, of messages only those inserted between two times.

    Raises:
        DataLoss: retention overtook the reader, and failOnDataLoss is on.
        UnknownTopic: the topic was deleted meanwhile.
    """
    if isinstance(partition, SlicePartition):  # not Spark's placeholder if there is no slice
        for one in partition.slices:
            yield from arrow.read(
                options.profile,
                options.dataset,
                schema,
                one,
                fail_on_data_loss=options.fail_on_data_loss,
                between=between,
                cancelled=options.include_cancelled,
                fetch_bytes=options.fetch_bytes,
            )


# -- pushed filters ----------------------------------------------------------------------------------------------------


class Pushed:
    """Filters taken from Spark: bounds on offsets and times, and sets of names."""

    def __init__(self) -> None:
        self._names: dict[str, set[Any]] = {}
        self._offsets = (0, _NEVER)
        self._times = (0, _LAST_US)

    def take(self, one: Filter, dataset: str) -> bool:
        """Take a filter; return whether the store applies it exactly."""
        column: tuple[str, ...] = getattr(one, "attribute", ())
        name = ".".join(column)
        if isinstance(one, IsNotNull):
            return name in _NEVER_NULL
        if name in ("topic", "partition", "group") and isinstance(one, EqualTo | In):
            wanted = {one.value} if isinstance(one, EqualTo) else set(one.value)
            self._names[name] = self._names.get(name, wanted) & wanted
            return True
        if name == ("lo" if dataset == "claims" else "offset"):
            found = _bounds(one, int)
            if found is not None:
                self._offsets = _both(self._offsets, found)
            return found is not None
        if name == "timestamp":
            found = _bounds(one, _microseconds)
            if found is not None:
                self._times = _both(self._times, found)
            return found is not None
        return False

    @property
    def between(self) -> tuple[int, int] | None:
        """The times between which the filters accept messages, or ``None`` for any time."""
        return None if self._times == (0, _LAST_US) else self._times

    def wants(self, one: Slice) -> bool:
        """Return whether the filters accept any row of a slice."""
        return all(one.constants[name] in wanted for name, wanted in self._names.items())

    def narrow(self, session: Session, one: Slice) -> Slice:
        """Return the part of a slice that can have accepted rows."""
        offsets = one.offsets.part(*self._offsets)
        if self.between is not None and one.group is None and offsets:
            start = scan.find_time(session, offsets, max(0, self._times[0] - _SLACK_US))
            end = scan.find_time(session, offsets.part(start, offsets.end), self._times[1] + _SLACK_US)
            offsets = offsets.part(start, end)
        return replace(one, offsets=offsets)


def _bounds(one: Filter, number: Callable[[Any], int]) -> tuple[int, int] | None:
    """Return the half-open interval of a comparison, or ``None`` if the filter is not a comparison."""
    if not isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return None
    value = number(one.value)
    if isinstance(one, EqualTo):
        return value, value + 1
    if isinstance(one, GreaterThan | GreaterThanOrEqual):
        return value + isinstance(one, GreaterThan), _NEVER
    return 0, value + isinstance(one, LessThanOrEqual)


def _both(first: tuple[int, int], second: tuple[int, int]) -> tuple[int, int]:
    return max(first[0], second[0]), max(0, min(first[1], second[1]))


def _microseconds(value: datetime) -> int:
    """Return microseconds since 1970; a Spark timestamp without a zone is in that of the Python worker."""
    since = value.astimezone(UTC) - _EPOCH
    return (since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds
