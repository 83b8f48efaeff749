"""The streaming reader of ``format("ems")``.

Offsets are written as Kafka's source writes them, ``{"topic": {"0": 23}}``. A query begins at symbols, -2 (earliest) or
-1 (latest). For latest the first micro-batch reads nothing, but records the actual offset: after a restart Spark asks
for the beginning again until a batch is in its checkpoint, and ``latest`` would be another offset each time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from emsworker.core.offsets import OffsetRange
from emsworker.spark import planning
from emsworker.spark.batch import SlicePartition, read
from emsworker.spark.options import EARLIEST, LATEST, Offsets, ReadOptions
from emsworker.spark.planning import DataLoss, Slice, Source
from emsworker.spark.profile import call
from emsworker.store.engine.session import Session
from emsworker.store.stream import scan

Place = tuple[str, int]
Journal = dict[str, dict[str, int]]
"""Offsets as in Spark's checkpoint, with partitions as text, because names in JSON are strings."""


class EmsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver, in one process for the life of the query, and reads them on the executors.

    ``commit`` does nothing: the progress of a query is in its checkpoint alone, and no group's cursor is moved.
    """

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._schema = schema
        self._options = options
        self._high_watermarks: dict[tuple[int, int], int] = {}
        self._goal: dict[Place, int] | None = None
        self._waiting_since: float | None = None

    # -- where from, where to ------------------------------------------------------------------------------------------

    def initialOffset(self) -> Journal:
        """Return the beginning of the query; symbols stay symbols."""
        return call(self._options.profile, self._find_beginning)

    def _find_beginning(self, session: Session) -> Journal:
        sources = planning.find_sources(session, self._options)
        planning.check_covered(self._options.starting, sources, "startingOffsets")
        return _journal({_place(source): self._beginning(session, source) for source in sources})

    def _beginning(self, session: Session, source: Source) -> int:
        limit = self._options.starting
        if planning.time_of(limit, source) is None:
            offset = planning.offset_of(limit, source)
            return offset if offset in (EARLIEST, LATEST) else planning.start_of(session, self._options, source)
        found = planning.start_of(session, self._options, source)
        return LATEST if found == source.bounds.end else found

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of maxOffsetsPerTrigger."""
        return ReadMaxRows(self._options.max_offsets) if self._options.max_offsets else ReadAllAvailable()

    def latestOffset(self, start: Journal, limit: ReadLimit) -> Journal:
        """Return the end of the next micro-batch: the high watermark, or less because of the limit.

        Raises:
            DataLoss: a topic or partition no longer exists, and failOnDataLoss is on.
        """
        begin = _places(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        slices = call(self._options.profile, lambda session: self._readable(session, begin, most))
        if LATEST not in begin.values() and self._is_too_little(sum(len(one.offsets) for one in slices)):
            return start
        return _journal({one.place: end for one, end in zip(slices, _share(slices, most), strict=True)})

    def _readable(self, session: Session, start: dict[Place, int], most: int | None) -> list[Slice]:
        """Return the readable slices; of a long backlog only as much is checked for holes as a micro-batch may have."""
        sources = planning.find_sources(session, self._options)
        self._check_all_there(start, sources)
        far = None if most is None else max(most, self._options.min_offsets or 0)
        slices = []
        for source in sources:
            offset = start.get(_place(source), EARLIEST)
            lo = self._concrete(session, source, offset)
            hi = lo if offset == LATEST else source.bounds.end
            if self._goal is not None:
                hi = min(hi, self._goal.get(_place(source), lo))
            near = hi if far is None else min(hi, lo + far)
            found = self._high_watermark(session, source, source.offsets(lo, near))
            slices.append(source.slice(lo, hi if found == near else found))
        return slices

    def _check_all_there(self, start: dict[Place, int], sources: Sequence[Source]) -> None:
        gone = sorted(set(start) - {_place(source) for source in sources})
        if gone and self._options.fail_on_data_loss:
            raise DataLoss(
                f"{gone[0][0]}/{gone[0][1]} is gone, but the checkpoint has it at offset {start[gone[0]]}; "
                "set failOnDataLoss=false to go on without it"
            )

    def _concrete(self, session: Session, source: Source, offset: int) -> int:
        if offset == LATEST:
            return self._high_watermark(session, source, source.present)
        if offset == EARLIEST:
            return source.bounds.log_start
        if offset > source.bounds.end and self._options.fail_on_data_loss:
            raise DataLoss(
                f"{source.place} ends at {source.bounds.end}, but the checkpoint has it at offset {offset}: the topic "
                "was made anew; begin with a new checkpoint, or set failOnDataLoss=false to wait for that offset"
            )
        return planning.above_log_start(self._options, source, offset)

    def _high_watermark(self, session: Session, source: Source, offsets: OffsetRange) -> int:
        """Return the first offset of a range without a row; a part without holes is not checked again."""
        key = (source.topic.id, source.bounds.partition)
        unknown = offsets.part(self._high_watermarks.get(key, 0), offsets.end)
        if not unknown:
            return offsets.end
        self._high_watermarks[key] = scan.find_high_watermark(session, source.bounds, unknown)
        return self._high_watermarks[key]

    def _is_too_little(self, offsets: int) -> bool:
        """Return whether to wait for minOffsetsPerTrigger, at most maxTriggerDelay."""
        least = self._options.min_offsets
        if least is None or offsets >= least or self._goal is not None:
            self._waiting_since = None
            return False
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()
        if offsets and time.monotonic() - self._waiting_since >= self._options.max_trigger_delay_s:
            self._waiting_since = None
            return False
        return True

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember the present ends of the partitions: this query reads nothing later."""
        self._goal = self._ends()

    def reportLatestOffset(self) -> Journal:
        """Return the ends of the partitions, for the query's progress."""
        return _journal(self._ends())

    def _ends(self) -> dict[Place, int]:
        sources = call(self._options.profile, lambda session: planning.find_sources(session, self._options))
        return {_place(source): source.bounds.end for source in sources}

    # -- one micro-batch -----------------------------------------------------------------------------------------------

    def partitions(self, start: Journal, end: Journal) -> list[InputPartition]:
        """Plan the tasks of a micro-batch; a batch that is run again gets the same rows, even if split differently."""
        slices = call(self._options.profile, lambda session: self._plan(session, _places(start), _places(end)))
        return [SlicePartition((one,)) for one in slices]

    def _plan(self, session: Session, start: dict[Place, int], end: dict[Place, int]) -> list[Slice]:
        options = self._options
        sources = {_place(source): source for source in planning.find_sources(session, options)}
        slices = []
        for place, hi in end.items():
            lo = start.get(place, EARLIEST)
            if place in sources and lo != LATEST:
                source = sources[place]
                lo = source.bounds.log_start if lo == EARLIEST else planning.above_log_start(options, source, lo)
                slices.append(source.slice(min(lo, hi), hi))
        return planning.split_by(session, options, slices)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a task, on an executor."""
        return read(self._schema, self._options, partition)

    def commit(self, end: Journal) -> None:
        """Do nothing: Spark calls this one batch late, and not for the last one."""

    def stop(self) -> None:
        """Do nothing: no resource is kept between calls."""


def _place(source: Source) -> Place:
    return source.topic.name, source.bounds.partition


def _journal(offsets: dict[Place, int]) -> Journal:
    found: Journal = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def _places(journal: Journal | Offsets) -> dict[Place, int]:
    return {(topic, int(number)): offset for topic, places in journal.items() for number, offset in places.items()}


def _share(slices: Sequence[Slice], most: int | None) -> list[int]:
    """Return the ends of a batch of at most ``most`` offsets: each partition gets its share, at least one offset."""
    total = sum(len(one.offsets) for one in slices)
    if most is None or total <= most:
        return [one.offsets.end for one in slices]
    left, ends = most, []
    for one in slices:
        size = len(one.offsets)
        part = min(size, left, max(1, most * size // total)) if size else 0
        left -= part
        ends.append(one.offsets.start + part)
    return ends
