"""The streaming reader of ``format("ems")``.

Offsets are written as Kafka's source writes them, ``{"topic": {"0": 23}}``, with the topic's id beside them,
``{"topic": {"0": 23, "id": 7}}``, by which a topic that was deleted and created again is noticed.

A query begins at symbols: -2 (earliest), -1 (latest) or -3 (at a time). Its first micro-batch reads nothing, but
records the actual offsets; likewise the first with a partition that was added later. Until a batch is in its
checkpoint, Spark asks for the beginning again after each restart: by then a symbol may mean another offset, because
messages were published or deleted, and a planned batch would be run again with other rows, or with none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from emsworker.arrow import planning
from emsworker.arrow.options import EARLIEST, LATEST, TOPIC_ID, ReadOptions
from emsworker.arrow.planning import DataLoss, Slice, Source
from emsworker.arrow.profile import call
from emsworker.arrow.servers import only_part
from emsworker.core.offsets import OffsetRange
from emsworker.core.servers import MAIN
from emsworker.spark.batch import SlicePartition, read
from emsworker.spark.hold import HeldPlace, QueryHold
from emsworker.store.engine.session import Session
from emsworker.store.stream import scan

T = TypeVar("T")
Place = tuple[str, int]
Journal = dict[str, dict[str, int]]
"""Offsets as in Spark's checkpoint, with partitions as text, because names in JSON are strings."""
_AT_TIME = -3


class EmsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver, in one process for the life of the query, and reads them on the executors.

    The progress of a query is in its checkpoint alone: no group's cursor is moved, and nothing is deleted. With
    ``holdName`` the offsets of the checkpoint hold retention.
    """

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._schema = schema
        self._options = options
        self._high_watermarks: dict[tuple[int, int], int] = {}
        self._goal: dict[Place, int] | None = None
        self._waiting_since: float | None = None
        self._hold = QueryHold(options.hold_name, options.hold_for_s) if options.hold_name else None

    def _call(self, work: Callable[[Session], T]) -> T:
        """Run ``work`` on the server of the topics, its primary: what a stream has read must not be behind it."""
        if self._options.server is None:
            self._options = only_part(self._options)
        return call(self._options.profile, work, self._options.server or MAIN)

    # -- where from, where to ------------------------------------------------------------------------------------------

    def initialOffset(self) -> Journal:
        """Return the beginning of the query; symbols stay symbols."""
        return self._call(self._find_beginning)

    def _find_beginning(self, session: Session) -> Journal:
        sources = planning.find_sources(session, self._options)
        planning.check_covered(self._options.starting, sources, "startingOffsets")
        return _journal(sources, [self._beginning(session, source) for source in sources])

    def _beginning(self, session: Session, source: Source) -> int:
        limit = self._options.starting
        start = planning.start_of(session, self._options, source)  # also checks it
        if planning.time_of(limit, source) is not None:
            return _AT_TIME
        offset = planning.offset_of(limit, source)
        return offset if offset in (EARLIEST, LATEST) else start

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of maxOffsetsPerTrigger."""
        return ReadMaxRows(self._options.max_offsets) if self._options.max_offsets else ReadAllAvailable()

    def latestOffset(self, start: Journal, limit: ReadLimit) -> Journal:
        """Return the end of the next micro-batch: the high watermark, or less because of the limit.

        Raises:
            DataLoss: a topic or partition no longer exists, and failOnDataLoss is on.
        """
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        sources, slices = self._call(lambda session: self._held(session, start, most))
        begin = _places(start)
        known = all(begin.get(_place(source), EARLIEST) >= 0 for source in sources)
        if known and self._is_too_little(sum(len(one.offsets) for one in slices)):
            return start
        return _journal(sources, _share(slices, most))

    def _held(self, session: Session, start: Journal, most: int | None) -> tuple[list[Source], list[Slice]]:
        """Return the readable sources and slices, with a hold on them if the query has a name."""
        sources, slices = self._readable(session, start, most)
        if self._hold is not None and self._hold.keep(session, {_held_place(one): one.offsets.start for one in slices}):
            return self._readable(session, start, most)  # retention may have been faster than the new hold
        return sources, slices

    def _readable(self, session: Session, start: Journal, most: int | None) -> tuple[list[Source], list[Slice]]:
        """Return the sources with their readable slices.

        Of a long backlog only as much is checked for holes as a micro-batch may have.
        """
        begin = _places(start)
        sources = planning.find_sources(session, self._options)
        self._check_all_there(begin, sources)
        far = None if most is None else max(most, self._options.min_offsets or 0)
        slices = []
        for source in sources:
            offset = begin.get(_place(source), EARLIEST) if self._is_same(start, source) else EARLIEST
            lo = self._concrete(session, source, offset)
            hi = lo if offset < 0 else source.bounds.end
            if self._goal is not None:
                hi = min(hi, self._goal.get(_place(source), lo))
            near = hi if far is None else min(hi, lo + far)
            found = self._high_watermark(session, source, source.offsets(lo, near))
            slices.append(source.slice(lo, hi if found == near else found))
        return sources, slices

    def _is_same(self, journal: Journal, source: Source) -> bool:
        """Return whether a topic is the one of the checkpoint, and not another of its name.

        Raises:
            DataLoss: it is another one, and failOnDataLoss is on.
        """
        known = journal.get(source.topic.name, {}).get(TOPIC_ID, source.topic.id)
        if known != source.topic.id and self._options.fail_on_data_loss:
            raise DataLoss(
                f"topic {source.topic.name!r} was deleted and created again since the checkpoint was written (its id "
                f"was {known}, and is {source.topic.id}); begin with a new checkpoint, or set failOnDataLoss=false to "
                "read the new one from its beginning"
            )
        return known == source.topic.id

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
        if offset == _AT_TIME:
            found = planning.start_of(session, self._options, source)
            return found if found < source.bounds.end else self._concrete(session, source, LATEST)
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
        self._goal = {_place(source): source.bounds.end for source in self._sources()}

    def reportLatestOffset(self) -> Journal:
        """Return the ends of the partitions, for the query's progress."""
        sources = self._sources()
        return _journal(sources, [source.bounds.end for source in sources])

    def _sources(self) -> list[Source]:
        return self._call(lambda session: planning.find_sources(session, self._options))

    # -- one micro-batch -----------------------------------------------------------------------------------------------

    def partitions(self, start: Journal, end: Journal) -> list[InputPartition]:
        """Plan the tasks of a micro-batch; a batch that is run again gets the same rows, even if split differently."""
        slices = self._call(lambda session: self._plan(session, start, end))
        return [SlicePartition((one,)) for one in slices]

    def _plan(self, session: Session, start: Journal, end: Journal) -> list[Slice]:
        options = self._options
        found = planning.find_sources(session, options)
        if self._hold is not None:
            here = {(one.topic.id, one.bounds.partition) for one in found}
            held = {place: offset for place, offset in _held_places(start).items() if place in here}
            if self._hold.keep(session, held):
                found = planning.find_sources(session, options)  # retention may have been faster than the new hold
        sources = {_place(source): source for source in found}
        begin, slices = _places(start), []
        for place, hi in _places(end).items():
            lo, source = begin.get(place, EARLIEST), sources.get(place)
            if source is not None and lo >= 0 and self._is_same(end, source) and self._is_same(start, source):
                lo = planning.above_log_start(options, source, lo)
                slices.append(source.slice(min(lo, hi), hi))
        return planning.split_by(session, options, slices)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a task, on an executor."""
        return read(self._schema, self._options, partition)

    def commit(self, end: Journal) -> None:
        """Move the hold forward: Spark calls this one batch late, and not for the last one, and never too early."""
        if self._hold is not None:
            hold, offsets = self._hold, _held_places(end)
            self._call(lambda session: hold.commit(session, offsets))

    def stop(self) -> None:
        """Do nothing: no resource is kept between calls."""


def _place(source: Source) -> Place:
    return source.topic.name, source.bounds.partition


def _journal(sources: Sequence[Source], offsets: Sequence[int]) -> Journal:
    found: Journal = {}
    for source, offset in sorted(zip(sources, offsets, strict=True), key=lambda pair: _place(pair[0])):
        places = found.setdefault(source.topic.name, {TOPIC_ID: source.topic.id})
        places[str(source.bounds.partition)] = offset
    return found


def _places(journal: Journal) -> dict[Place, int]:
    return {
        (topic, int(number)): offset
        for topic, places in journal.items()
        for number, offset in places.items()
        if number != TOPIC_ID
    }


def _held_place(one: Slice) -> HeldPlace:
    return one.offsets.topic_id, one.offsets.partition


def _held_places(journal: Journal) -> dict[HeldPlace, int]:
    """Return the concrete offsets of a journal by the ids of its topics."""
    return {
        (places[TOPIC_ID], int(number)): offset
        for places in journal.values()
        for number, offset in places.items()
        if number != TOPIC_ID and offset >= 0 and TOPIC_ID in places
    }


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
