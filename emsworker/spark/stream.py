"""The streaming reader of ``format("ems")``.

Offsets are written as Kafka's source writes them, ``{"topic": {"0": 23}}``, with the topic's id beside them,
``{"topic": {"0": 23, "id": 7}}``, by which a topic that was deleted and created again is noticed. Of several servers
each has topics, ids and offsets of its own: the name of a topic that is not on the main server begins with that of its
server, ``{"east/topic": {"0": 5, "id": 3}}``. A topic that has moved is read wherever it has been, so that no
message is left out, however often it moves: first what it has left behind, to the end, and then where it is kept.

A query begins at symbols: -2 (earliest), -1 (latest) or -3 (at a time). Its first micro-batch reads nothing, but
records the actual offsets; likewise the first with a partition that was added later. Until a batch is in its
checkpoint, Spark asks for the beginning again after each restart: by then a symbol may mean another offset, because
messages were published or deleted, and a planned batch would be run again with other rows, or with none.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from emsworker.arrow import planning, scan
from emsworker.arrow.options import EARLIEST, LATEST, TOPIC_ID, ReadOptions, TopicSelection, read_options
from emsworker.arrow.planning import DataLoss, Slice, Source
from emsworker.arrow.profile import call
from emsworker.arrow.servers import servers_of
from emsworker.extending.database import Session
from emsworker.extending.errors import StoreUnavailable, UnknownTopic
from emsworker.extending.processes import lazy
from emsworker.extending.settings import MAIN
from emsworker.extending.stream import list_topics
from emsworker.extending.values import OffsetRange
from emsworker.spark.batch import SlicePartition, read
from emsworker.spark.brief import brief_errors
from emsworker.spark.columns import check_schema
from emsworker.spark.hold import HeldPlace, QueryHold

log = logging.getLogger(__name__)

T = TypeVar("T")
Place = tuple[str, int]
"""A topic's name in the journal, and a partition."""
SourceOffset = dict[str, dict[str, int]]
"""Offsets as in Spark's checkpoint, with partitions as text, because names in JSON are strings."""
_AT_TIME = -3


class _Part:
    """The part of a query that is on one server, its primary: what a stream has read must not be behind it.

    Args:
        alone: the query reads this server only.

    Attributes:
        high_watermarks: by topic id and partition; below them there are no holes.
    """

    def __init__(self, name: str, options: ReadOptions, *, alone: bool) -> None:
        self.name = name
        self._options = replace(options, server=name)
        self._alone = alone
        self.high_watermarks: dict[tuple[int, int], int] = {}
        self._hold = QueryHold(options.hold_name, options.hold_for_s) if options.hold_name else None

    def call(self, work: Callable[[Session], T]) -> T:
        """Run ``work`` on the server."""
        return call(self._options.profile, work, self.name)

    def place(self, source: Source) -> Place:
        """Return the place of a partition in the journal."""
        elsewhere = not self._alone and self.name != MAIN
        return (f"{self.name}/{source.topic.name}" if elsewhere else source.topic.name), source.bounds.partition

    def own(self, journal: SourceOffset) -> SourceOffset:
        """Return the part of a journal that is about this server."""
        if self._alone:
            return journal
        return {topic: places for topic, places in journal.items() if _server_of(topic) == self.name}

    def sources(self, session: Session) -> list[Source]:
        """Return the partitions to read: of topics that this server keeps, and of those that have moved away."""
        if self._alone and self._options.fail_on_data_loss:
            return planning.find_sources(session, self._options)
        chosen = self._options.subscription
        names = [topic.name for topic in list_topics(session) if _is_wanted(chosen, topic.name)]
        given = None if chosen.partitions is None else {name: chosen.partitions[name] for name in names}
        here = TopicSelection(() if given is not None else tuple(names), None, given)
        return planning.find_sources(session, replace(self._options, subscription=here))

    def beginning(self, session: Session, source: Source) -> int:
        """Return where the query begins to read a partition; symbols stay symbols."""
        limit = self._options.starting
        if self._is_rest(source) and isinstance(limit.offsets, dict):
            return LATEST  # the offsets are those of the server that keeps the topic now
        start = self._start_of(session, source)  # also checks it
        if planning.time_of(limit, source) is not None:
            return _AT_TIME
        offset = planning.offset_of(limit, source)
        return offset if offset in (EARLIEST, LATEST) else start

    def _start_of(self, session: Session, source: Source) -> int:
        """Return the first offset to read; what is left of a topic that has moved may all be older than a time."""
        options = self._options
        if self._is_rest(source):
            options = replace(options, starting=replace(options.starting, strict=False))
        return planning.start_of(session, options, source)

    def _is_rest(self, source: Source) -> bool:
        return not self._alone and source.topic.server is not None

    def held(
        self, journal: SourceOffset, goal: Mapping[Place, int] | None, most: int | None, session: Session
    ) -> tuple[list[Source], list[Slice]]:
        """Return the sources with their readable slices, with a hold on them if the query has a name.

        Args:
            journal: this server's, with the offsets from which on is read.
            goal: the ends beyond which nothing is read.
            most: the maximum number of offsets of a micro-batch.

        Raises:
            DataLoss: a topic or partition no longer exists, and failOnDataLoss is on.
        """
        sources, slices = self._readable(journal, goal, most, session)
        if self._hold is not None and self._hold.keep(session, {_held_place(one): one.offsets.start for one in slices}):
            return self._readable(journal, goal, most, session)  # retention may have been faster than the new hold
        return sources, slices

    def _readable(
        self, journal: SourceOffset, goal: Mapping[Place, int] | None, most: int | None, session: Session
    ) -> tuple[list[Source], list[Slice]]:
        """Return the sources with their readable slices.

        Of a long backlog only as much is checked for holes as a micro-batch may have.
        """
        begin = _places(journal)
        sources = self.sources(session)
        self._check_all_there(begin, sources)
        far = None if most is None else max(most, self._options.min_offsets or 0)
        slices = []
        for source in sources:
            place = self.place(source)
            offset = begin.get(place, EARLIEST) if self._is_same(journal, source) else EARLIEST
            lo = self._concrete(session, source, offset)
            hi = lo if offset < 0 else source.bounds.end
            if goal is not None:
                hi = min(hi, goal.get(place, lo))
            near = hi if far is None else min(hi, lo + far)
            found = self._high_watermark(session, source, source.offsets(lo, near))
            slices.append(source.slice(lo, hi if found == near else found))
        return sources, slices

    def _is_same(self, journal: SourceOffset, source: Source) -> bool:
        """Return whether a topic is the one of the checkpoint, and not another of its name.

        Raises:
            DataLoss: it is another one, and failOnDataLoss is on.
        """
        known = journal.get(self.place(source)[0], {}).get(TOPIC_ID, source.topic.id)
        if known != source.topic.id and self._options.fail_on_data_loss:
            raise DataLoss(
                f"topic {source.topic.name!r} was deleted and created again since the checkpoint was written (its id "
                f"was {known}, and is {source.topic.id}); begin with a new checkpoint, or set failOnDataLoss=false to "
                "read the new one from its beginning"
            )
        return known == source.topic.id

    def _check_all_there(self, start: dict[Place, int], sources: Sequence[Source]) -> None:
        gone = sorted(set(start) - {self.place(source) for source in sources})
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
            found = self._start_of(session, source)
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
        unknown = offsets.part(self.high_watermarks.get(key, 0), offsets.end)
        if not unknown:
            return offsets.end
        self.high_watermarks[key] = scan.find_high_watermark(session, source.bounds, unknown)
        return self.high_watermarks[key]

    def plan(self, start: SourceOffset, end: SourceOffset, session: Session) -> list[Slice]:
        """Return the slices of a micro-batch."""
        options = self._options
        found = self.sources(session)
        if self._hold is not None:
            here = {(one.topic.id, one.bounds.partition) for one in found}
            held = {place: offset for place, offset in _held_places(start).items() if place in here}
            if self._hold.keep(session, held):
                found = self.sources(session)  # retention may have been faster than the new hold
        sources = {self.place(source): source for source in found}
        begin, slices = _places(start), []
        for place, hi in _places(end).items():
            lo, source = begin.get(place, EARLIEST), sources.get(place)
            if source is not None and lo >= 0 and self._is_same(end, source) and self._is_same(start, source):
                lo = planning.above_log_start(options, source, lo)
                slices.append(source.slice(min(lo, hi), hi))
        return planning.split_by(session, options, slices)

    def commit(self, end: SourceOffset, session: Session) -> None:
        """Move the hold forward."""
        if self._hold is not None:
            self._hold.commit(session, _held_places(end))


@brief_errors
class EmsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver, in one process for the life of the query, and reads them on the executors.

    The progress of a query is in its checkpoint alone: no group's cursor is moved, and nothing is deleted. With
    ``holdName`` the offsets of the checkpoint hold retention. Of several servers, one that is away holds up its own
    topics only: their offsets stay where they are until it is back.
    """

    def __init__(self, schema: StructType, given: Mapping[str, str]) -> None:
        self._schema = schema
        self._given = given
        self._goal: dict[Place, int] | None = None
        self._waiting_since: float | None = None
        self._gone: set[str] = set()

    @lazy
    def _options(self) -> ReadOptions:
        """The options, which are not checked before a method is called.

        PySpark 4.2 hides an error of the constructor behind one of its own: its ``finally`` stops a reader that it
        does not have.
        """
        options = read_options(self._given, streaming=True)
        check_schema(options.dataset, self._schema)
        return options

    @lazy
    def servers(self) -> dict[str, _Part]:
        """The servers that are read, by name."""
        names = servers_of(self._options)
        return {name: _Part(name, self._options, alone=len(names) == 1) for name in names}

    # -- where from, where to ------------------------------------------------------------------------------------------

    def initialOffset(self) -> SourceOffset:
        """Return the beginning of the query; symbols stay symbols.

        Raises:
            StoreUnavailable: a server is away.
            UnknownTopic: a topic is on none of them.
        """
        found = self._sources()
        every = [source for sources in found.values() for source in sources]
        self._check_named(every, {})
        planning.check_covered(self._options.starting, every, "startingOffsets")
        begin: dict[Place, tuple[Source, int]] = {}
        for server, sources in found.items():

            def beginnings(session: Session, server: _Part = server, sources: list[Source] = sources) -> list[int]:
                return [server.beginning(session, source) for source in sources]

            for source, offset in zip(sources, server.call(beginnings), strict=True):
                begin[server.place(source)] = source, offset
        return _journal(begin)

    def _sources(self) -> dict[_Part, list[Source]]:
        """Return the partitions of every server of which the query would begin to read now."""
        return {one: one.call(one.sources) for one in self.servers.values()}

    def _check_named(self, sources: Sequence[Source], start: SourceOffset) -> SourceOffset:
        """Return the places of topics that were deleted after the query has begun to read them, as Kafka's source.

        Raises:
            UnknownTopic: another topic that is named is not there, or failOnDataLoss is on.
        """
        chosen, gone = self._options.subscription, SourceOffset()
        named = chosen.names if chosen.partitions is None else tuple(chosen.partitions)
        there = {source.topic.name for source in sources}
        for name in [] if chosen.pattern is not None else [one for one in named if one not in there]:
            places = {topic: at for topic, at in start.items() if topic.rpartition("/")[2] == name}
            if not places or self._options.fail_on_data_loss:
                raise UnknownTopic(f"there is no topic {name!r} to read; `ems topics list` shows what there is")
            gone |= places
        for topic in gone.keys() - self._gone:
            log.warning("topic %s was deleted; the query goes on without it, after its offsets %s", topic, gone[topic])
        self._gone = set(gone)
        return gone

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of maxOffsetsPerTrigger."""
        return ReadMaxRows(self._options.max_offsets) if self._options.max_offsets else ReadAllAvailable()

    def latestOffset(self, start: SourceOffset, limit: ReadLimit) -> SourceOffset:
        """Return the end of the next micro-batch: the high watermark, or less because of the limit.

        Raises:
            DataLoss: a topic or partition no longer exists, and failOnDataLoss is on.
            StoreUnavailable: no server can be read.
        """
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        found, away = self._ask(self.servers, lambda one: one.call(partial(one.held, one.own(start), self._goal, most)))
        gone = SourceOffset()
        if not away:
            gone = self._check_named([source for sources, _ in found.values() for source in sources], start)
        places = [(one.place(source), source) for one, (sources, _) in found.items() for source in sources]
        slices = _first_the_old(
            [(source, part) for pairs in found.values() for source, part in zip(*pairs, strict=True)]
        )
        begin = _places(start)
        known = all(begin.get(place, EARLIEST) >= 0 for place, _ in places)
        if known and self._is_too_little(sum(len(one.offsets) for one in slices)):
            return start
        ends = zip(places, _share(slices, most), strict=True)
        end = _journal({place: (source, offset) for (place, source), offset in ends})
        kept = gone | {topic: at for one in away for topic, at in one.own(start).items()}
        return dict(sorted((end | kept).items()))

    def _ask(self, names: Mapping[str, _Part], ask: Callable[[_Part], T]) -> tuple[dict[_Part, T], list[_Part]]:
        """Return what servers answer, and which are away.

        Raises:
            StoreUnavailable: all are.
        """
        found, away = dict[_Part, T](), dict[_Part, StoreUnavailable]()
        for one in names.values():
            try:
                found[one] = ask(one)
            except StoreUnavailable as error:
                away[one] = error
        if names and not found:
            raise next(iter(away.values()))
        for one, reason in away.items():
            log.warning("server %s is not read until it is back: %s", one.name, reason)
        return found, list(away)

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
        """Remember the present ends of the partitions: this query reads nothing later.

        Raises:
            StoreUnavailable: a server is away.
        """
        self._goal = {
            server.place(source): source.bounds.end for server, sources in self._sources().items() for source in sources
        }

    def reportLatestOffset(self) -> SourceOffset:
        """Return the ends of the partitions, for the query's progress."""
        found, _ = self._ask(self.servers, lambda one: one.call(one.sources))
        places = ((one.place(source), source) for one, sources in found.items() for source in sources)
        return _journal({place: (source, source.bounds.end) for place, source in places})

    # -- one micro-batch -----------------------------------------------------------------------------------------------

    def partitions(self, start: SourceOffset, end: SourceOffset) -> list[InputPartition]:
        """Plan the tasks of a micro-batch; a batch that is run again gets the same rows, even if split differently."""
        slices = list[Slice]()
        for one in self.servers.values():
            own = one.own(start), one.own(end)
            if own[0] != own[1]:  # a server of which nothing is read may be away
                slices += one.call(partial(one.plan, *own))
        return [SlicePartition((one,)) for one in slices]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a task, on an executor."""
        return read(self._schema, self._options, partition)

    def commit(self, end: SourceOffset) -> None:
        """Move the hold forward: Spark calls this one batch late, and not for the last one, and never too early."""
        if self._options.hold_name:
            self._ask(self.servers, lambda one: one.call(partial(one.commit, one.own(end))))

    def stop(self) -> None:
        """Do nothing: no resource is kept between calls."""


def _first_the_old(parts: Sequence[tuple[Source, Slice]]) -> list[Slice]:
    """Return slices; of a topic that has moved nothing is read where it is kept now until its rest has been read."""
    left = {source.topic.name for source, part in parts if source.topic.server is not None and part.offsets}
    return [
        source.slice(part.offsets.start, part.offsets.start)
        if source.topic.server is None and source.topic.name in left
        else part
        for source, part in parts
    ]


def _is_wanted(chosen: TopicSelection, name: str) -> bool:
    if chosen.pattern is not None:
        return re.fullmatch(chosen.pattern, name) is not None
    return name in (chosen.names if chosen.partitions is None else chosen.partitions)


def _server_of(topic: str) -> str:
    """Return the server of a topic in the journal."""
    return topic.rpartition("/")[0] or MAIN


def _journal(offsets: Mapping[Place, tuple[Source, int]]) -> SourceOffset:
    found: SourceOffset = {}
    for (topic, partition), (source, offset) in sorted(offsets.items(), key=lambda one: one[0]):
        places = found.setdefault(topic, {TOPIC_ID: source.topic.id})
        places[str(partition)] = offset
    return found


def _places(journal: SourceOffset) -> dict[Place, int]:
    return {
        (topic, int(number)): offset
        for topic, places in journal.items()
        for number, offset in places.items()
        if number != TOPIC_ID
    }


def _held_place(one: Slice) -> HeldPlace:
    return one.offsets.topic_id, one.offsets.partition


def _held_places(journal: SourceOffset) -> dict[HeldPlace, int]:
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
