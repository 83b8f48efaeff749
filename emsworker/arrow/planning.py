"""Planning of a read: converts options to slices of topics, and cuts these for the tasks."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from emsworker.arrow import scan
from emsworker.arrow.options import EARLIEST, LATEST, OffsetLimit, ReadOptions
from emsworker.arrow.scan import PartitionBounds, Query
from emsworker.extending.database import Session
from emsworker.extending.errors import EmsError, UnknownGroup, UnknownTopic
from emsworker.extending.settings import MAIN
from emsworker.extending.stream import topics
from emsworker.extending.values import Group, OffsetRange, Topic

log = logging.getLogger(__name__)


class DataLoss(EmsError):
    """Messages to read, or their topic, have been deleted; ``failOnDataLoss=false`` continues."""


class OutOfRange(EmsError):
    """A given offset or time is beyond the end of a partition."""


@dataclass(frozen=True)
class Source:
    """A partition of a topic, with a group if the dataset belongs to groups."""

    topic: Topic
    bounds: PartitionBounds
    group: Group | None = None
    server: str = MAIN

    @property
    def place(self) -> str:
        """Topic and partition for error messages."""
        return f"{self.topic.name}/{self.bounds.partition}"

    def offsets(self, start: int, end: int) -> OffsetRange:
        return OffsetRange(self.topic.id, self.bounds.partition, start, max(start, end))

    @property
    def present(self) -> OffsetRange:
        """The offsets from the log start offset to the end."""
        return self.offsets(self.bounds.log_start, self.bounds.end)

    def slice(self, start: int, end: int) -> Slice:
        """Return a slice of the partition, or of its group's log there."""
        return Slice(self.offsets(start, end), self.topic.name, self.group, server=self.server)


@dataclass(frozen=True)
class Slice:
    """A range of offsets of the messages, or of a group's log, with the names that its rows have in common.

    Attributes:
        below: for the log of a group: only rows that are settled below this offset.
        server: of several servers, the one that it is on.
    """

    offsets: OffsetRange
    topic: str
    group: Group | None = None
    below: int | None = None
    server: str = MAIN

    @property
    def place(self) -> tuple[str, int]:
        """Topic and partition."""
        return self.topic, self.offsets.partition

    @property
    def constants(self) -> dict[str, Any]:
        """The columns that have the same value in all rows."""
        group = None if self.group is None else self.group.name
        return {"topic": self.topic, "partition": self.offsets.partition, "group": group}

    def query(self, dataset: str, columns: tuple[str, ...] = (), **settings: Any) -> Query:
        """Make the query for its rows."""
        return Query(dataset, columns, None if self.group is None else self.group.id, below=self.below, **settings)

    def weigh(self, session: Session, dataset: str) -> int:
        """Estimate the bytes of its rows."""
        return scan.estimate_bytes(session, self.query(dataset), self.offsets)


# -- which topics ------------------------------------------------------------------------------------------------------


def find_sources(session: Session, options: ReadOptions) -> list[Source]:
    """Find the subscribed partitions.

    Raises:
        UnknownTopic, UnknownGroup: names the missing topic, partition or group.
    """
    chosen = options.subscription
    every = {topic.name: topic for topic in topics.list_topics(session)}
    if chosen.pattern is not None:
        names: Iterable[str] = [name for name in every if re.fullmatch(chosen.pattern, name)]
    else:
        names = chosen.partitions if chosen.partitions is not None else dict.fromkeys(chosen.names)
    sources = []
    for name in names:
        if name not in every:
            raise UnknownTopic(f"there is no topic {name!r} to read; `ems topics list` shows what there is")
        bounds = scan.list_bounds(session, every[name].id)
        if chosen.partitions is not None:
            bounds = _assigned(name, bounds, chosen.partitions[name])
        sources += [Source(every[name], one, server=options.server or MAIN) for one in bounds]
    return sources if options.dataset == "messages" else _with_groups(session, sources, options)


def _assigned(name: str, bounds: list[PartitionBounds], wanted: tuple[int, ...]) -> list[PartitionBounds]:
    there = {one.partition for one in bounds}
    if missing := sorted(set(wanted) - there):
        raise UnknownTopic(f"topic {name!r} has no partition {missing[0]}; it has {min(there)} to {max(there)}")
    return [one for one in bounds if one.partition in wanted]


def _with_groups(session: Session, sources: list[Source], options: ReadOptions) -> list[Source]:
    groups = [one for one in topics.list_groups(session) if options.group in (None, one.name)]
    found = [
        replace(source, group=group) for source in sources for group in groups if group.topic_id == source.topic.id
    ]
    if options.group is not None and not found:
        names = ", ".join(sorted({source.topic.name for source in sources})) or "these topics"
        raise UnknownGroup(f"there is no group {options.group!r} of {names}; `ems groups list` shows what there is")
    return found


# -- from where to where -----------------------------------------------------------------------------------------------


def plan(
    session: Session, options: ReadOptions, narrow: Callable[[Session, Slice], Slice] = lambda session, one: one
) -> list[Slice]:
    """Plan the slices of a batch read, one for each source.

    Args:
        narrow: returns the wanted part of a slice. Only that is searched for holes, which reads all of its index.

    Raises:
        DataLoss: a range begins below the log start offset, and failOnDataLoss is on.
        OutOfRange: a range ends beyond the end of its partition, or above a hole that is not closed yet.
    """
    sources = find_sources(session, options)
    for limit, name in ((options.starting, "startingOffsets"), (options.ending, "endingOffsets")):
        check_covered(limit, sources, name)
    if options.dataset == "messages":
        return [_message_range(session, options, source, narrow) for source in sources]
    return [narrow(session, _log_range(session, options, source)) for source in sources]


def check_covered(limit: OffsetLimit, sources: list[Source], name: str) -> None:
    """Check that offsets by partition name the partitions that are read, as Kafka's source requires.

    Raises:
        OutOfRange: names a partition that is missing, or not read.
    """
    if limit.timestamp_ms is not None:
        return
    given = limit.by_timestamp if limit.by_timestamp is not None else limit.offsets
    if isinstance(given, dict):
        named = {(topic, number) for topic, places in given.items() for number in places}
        read = {(source.topic.name, source.bounds.partition) for source in sources}
        for topic, number in sorted(read - named):
            raise OutOfRange(f"{name} names no offset for {topic}/{number}; name every partition that is read")
        for topic, number in sorted(named - read):
            raise OutOfRange(f"{name} names {topic}/{number}, which is not read; leave it out, or subscribe to it")


def _message_range(
    session: Session, options: ReadOptions, source: Source, narrow: Callable[[Session, Slice], Slice]
) -> Slice:
    bounds = source.bounds
    lo = start_of(session, options, source)
    hi, exact = _end_of(session, options.ending, source)
    if hi > bounds.end:
        raise OutOfRange(f"endingOffsets = {hi} for {source.place}: it ends at {bounds.end}")
    wanted = narrow(session, source.slice(lo, hi))
    lo, hi = wanted.offsets.start, wanted.offsets.end
    hole = scan.find_high_watermark(session, bounds, wanted.offsets)
    if hole < hi and exact:
        raise OutOfRange(
            f"endingOffsets = {hi} for {source.place}: offset {hole} is not resolved yet, a producer may still fill "
            "it; read up to there, or try again when the workers have closed it"
        )
    if hole < hi:
        log.warning(
            "%s is read up to offset %d and not to its end, %d: offset %d is not resolved yet, "
            "a producer may still fill it",
            source.place,
            hole,
            hi,
            hole,
        )
    return source.slice(lo, hole)


def _log_range(session: Session, options: ReadOptions, source: Source) -> Slice:
    """Plan the log of a group, which may begin below the log start offset: dead letters outlive their messages."""
    default = options.starting.timestamp_ms is None and options.starting.by_timestamp is None
    if default and options.starting.offsets == "earliest":
        lo = 0
    else:
        lo = start_of(session, replace(options, fail_on_data_loss=False), source)
    return source.slice(lo, _end_of(session, options.ending, source)[0])


def start_of(session: Session, options: ReadOptions, source: Source) -> int:
    """Return the first offset to read.

    Raises:
        DataLoss: the offset has been deleted, and failOnDataLoss is on.
        OutOfRange: the offset is beyond the end, or no message has the given time or a later one.
    """
    bounds, limit = source.bounds, options.starting
    time_ms = time_of(limit, source)
    if time_ms is not None:
        found = _offset_at(session, source, time_ms)
        if found == bounds.end and limit.strict:
            raise OutOfRange(
                f"no message of {source.place} is of {time_ms} ms or later; "
                "startingOffsetsByTimestampStrategy=latest begins at the end then"
            )
        return found
    offset = offset_of(limit, source)
    if offset in (EARLIEST, LATEST):
        return bounds.log_start if offset == EARLIEST else bounds.end
    if offset > bounds.end:
        raise OutOfRange(f"startingOffsets = {offset} for {source.place}: it ends at {bounds.end}")
    return above_log_start(options, source, max(1, offset))


def above_log_start(options: ReadOptions, source: Source, offset: int) -> int:
    """Return the offset, or the log start offset if that is higher.

    Raises:
        DataLoss: the log start offset is higher, and failOnDataLoss is on.
    """
    log_start = source.bounds.log_start
    if offset >= log_start:
        return offset
    gone = source.offsets(offset, log_start)
    text = f"{gone} of {source.place} have been deleted (its log start offset is {log_start})"
    if options.fail_on_data_loss:
        raise DataLoss(f"{text}; begin at {log_start}, or set failOnDataLoss=false to read what is left")
    log.warning("%s; reading on from there", text)
    return log_start


def _end_of(session: Session, limit: OffsetLimit, source: Source) -> tuple[int, bool]:
    """Return the exclusive end, and whether the options name exactly that offset."""
    time_ms = time_of(limit, source)
    if time_ms is not None:
        return _offset_at(session, source, time_ms), False
    offset = offset_of(limit, source)
    return (source.bounds.end, False) if offset == LATEST else (offset, True)


def time_of(limit: OffsetLimit, source: Source) -> int | None:
    """Return the time of a limit for a source in milliseconds, or ``None`` if the limit is not a time."""
    if limit.timestamp_ms is not None:
        return limit.timestamp_ms
    return None if limit.by_timestamp is None else limit.by_timestamp[source.topic.name][source.bounds.partition]


def offset_of(limit: OffsetLimit, source: Source) -> int:
    """Return the offset of a limit for a source, -2 and -1 included."""
    if isinstance(limit.offsets, dict):
        return limit.offsets[source.topic.name][source.bounds.partition]
    return EARLIEST if limit.offsets == "earliest" else LATEST


def _offset_at(session: Session, source: Source, time_ms: int) -> int:
    return scan.find_time(session, source.present, time_ms * 1000)


# -- in how many slices ------------------------------------------------------------------------------------------------


def split(
    session: Session,
    dataset: str,
    slices: Sequence[Slice],
    *,
    most_bytes: int,
    most_offsets: int | None = None,
    least: int | None = None,
) -> list[Slice]:
    """Cut slices by offsets into smaller ones.

    Args:
        most_bytes: approximate bytes of one slice.
        most_offsets: offsets of one slice.
        least: the number of slices to make at least, if there are enough offsets.
    """
    slices = [one for one in slices if one.offsets]
    total = sum(len(one.offsets) for one in slices)
    found = []
    for one in slices:
        count = len(one.offsets)
        parts = -(-one.weigh(session, dataset) // most_bytes)
        if most_offsets:
            parts = max(parts, -(-count // most_offsets))
        if least and len(slices) < least:
            parts = max(parts, -(-least * count // total))
        found += [replace(one, offsets=part) for part in one.offsets.cut(min(max(parts, 1), count))]
    return found


def split_by(session: Session, options: ReadOptions, slices: Sequence[Slice]) -> list[Slice]:
    """Cut slices by partitionBytes, maxRecordsPerPartition and minPartitions."""
    return split(
        session,
        options.dataset,
        slices,
        most_bytes=options.partition_bytes,
        most_offsets=options.max_records_per_partition,
        least=options.min_partitions,
    )
