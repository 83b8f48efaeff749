"""Planning of a read: converts options to ranges of offsets of topics, and splits them into pieces."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from emsworker.core.errors import EmsError, UnknownGroup, UnknownTopic
from emsworker.core.model import Group, Topic
from emsworker.spark.options import EARLIEST, LATEST, OffsetLimit, Offsets, ReadOptions
from emsworker.store import topics
from emsworker.store.engine.session import Session
from emsworker.store.stream import scan
from emsworker.store.stream.scan import PartitionBounds, Piece

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

    @property
    def place(self) -> str:
        """Topic and partition for error messages."""
        return f"{self.topic.name}/{self.bounds.partition}"


@dataclass(frozen=True)
class ReadRange:
    """A range of offsets of a source to read; ``hi`` is exclusive."""

    source: Source
    lo: int
    hi: int

    @property
    def piece(self) -> Piece:
        """The range as a piece of the store."""
        owner = self.source.group or self.source.topic
        return Piece(owner.id, self.source.topic.id, self.source.bounds.partition, self.lo, self.hi)


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
        sources += [Source(every[name], one) for one in bounds]
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


def plan(session: Session, options: ReadOptions) -> list[ReadRange]:
    """Plan the ranges of a batch read, one for each source.

    Raises:
        DataLoss: a range begins below the log start offset, and failOnDataLoss is on.
        OutOfRange: a range ends beyond the end of its partition, or above a hole that is not closed yet.
    """
    sources = find_sources(session, options)
    for limit, name in ((options.starting, "startingOffsets"), (options.ending, "endingOffsets")):
        check_covered(limit, sources, name)
    if options.dataset == "messages":
        return [_message_range(session, options, source) for source in sources]
    return [_log_range(session, options, source) for source in sources]


def check_covered(limit: OffsetLimit, sources: list[Source], name: str) -> None:
    """Check that offsets by partition name each partition that is read, as Kafka's source requires.

    Raises:
        OutOfRange: names a missing partition.
    """
    if limit.timestamp_ms is not None:
        return
    given = limit.by_timestamp if limit.by_timestamp is not None else limit.offsets
    if isinstance(given, dict):
        for source in sources:
            if source.bounds.partition not in given.get(source.topic.name, {}):
                raise OutOfRange(f"{name} names no offset for {source.place}; name every partition that is read")


def _message_range(session: Session, options: ReadOptions, source: Source) -> ReadRange:
    bounds = source.bounds
    lo = start_of(session, options, source)
    hi, exact = _end_of(session, options.ending, source)
    if hi > bounds.end:
        raise OutOfRange(f"endingOffsets = {hi} for {source.place}: it ends at {bounds.end}")
    hi = max(lo, hi)
    hole = scan.find_high_watermark(session, source.topic.id, bounds, lo, hi)
    if hole < hi and exact:
        raise OutOfRange(
            f"endingOffsets = {hi} for {source.place}: offset {hole} is not resolved yet, a producer may still fill "
            "it; read up to there, or try again when the workers have closed it"
        )
    return ReadRange(source, lo, hole)


def _log_range(session: Session, options: ReadOptions, source: Source) -> ReadRange:
    """Plan the log of a group, which may begin below the log start offset: dead letters outlive their messages."""
    default = options.starting.timestamp_ms is None and options.starting.by_timestamp is None
    if default and options.starting.offsets == "earliest":
        lo = 0
    else:
        lo = start_of(session, replace(options, fail_on_data_loss=False), source)
    return ReadRange(source, lo, max(lo, _end_of(session, options.ending, source)[0]))


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
    text = (
        f"offsets {offset} to {log_start - 1} of {source.place} have been deleted (its log start offset is {log_start})"
    )
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
    bounds = source.bounds
    return scan.find_time(session, source.topic.id, bounds.partition, bounds.log_start, bounds.end, time_ms * 1000)


# -- in how many pieces ------------------------------------------------------------------------------------------------


def split(ranges: list[ReadRange], options: ReadOptions, weigh: Callable[[ReadRange], int]) -> list[ReadRange]:
    """Cut ranges by partitionBytes, maxRecordsPerPartition and minPartitions; every cut is by offsets.

    Args:
        weigh: estimates the bytes of a range.
    """
    ranges = [one for one in ranges if one.hi > one.lo]
    total = sum(one.hi - one.lo for one in ranges)
    pieces = []
    for one in ranges:
        count = one.hi - one.lo
        parts = -(-weigh(one) // options.partition_bytes)
        if options.max_records_per_partition:
            parts = max(parts, -(-count // options.max_records_per_partition))
        if options.min_partitions and len(ranges) < options.min_partitions:
            parts = max(parts, -(-options.min_partitions * count // total))
        pieces += _cut(one, min(max(parts, 1), count))
    return pieces


def _cut(one: ReadRange, parts: int) -> list[ReadRange]:
    edges = [one.lo + (one.hi - one.lo) * number // parts for number in range(parts + 1)]
    return [ReadRange(one.source, lo, hi) for lo, hi in pairwise(edges)]


def offsets_json(places: Iterable[tuple[Source, int]]) -> Offsets:
    """Return offsets by topic and partition, as Kafka's source writes them."""
    found: Offsets = {}
    for source, offset in places:
        found.setdefault(source.topic.name, {})[source.bounds.partition] = offset
    return found
