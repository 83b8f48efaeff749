"""Selection of messages of a topic by place, time, key, tag or predicate, shared by listing and replay."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from emsworker.admin.cursors import read_time
from emsworker.core.errors import ConfigError, Problem
from emsworker.core.ids import encode_key, parse_uid
from emsworker.core.model import Topic
from emsworker.core.offsets import OffsetRange
from emsworker.core.options import option, problems_in, raise_problems, text, whole
from emsworker.core.selection.bounds import Bounds
from emsworker.core.selection.parser import parse_node
from emsworker.core.selection.predicate import Compare, Field, Node, OneOf, Predicate
from emsworker.store.engine.session import Session
from emsworker.store.groups.cursors import Position, find_offset_at
from emsworker.store.stream import search
from emsworker.store.stream.messages import find_uids

# Offsets and times agree except for concurrent sends: a producer may take an offset, and write a moment later.
_DISORDER = timedelta(minutes=1)
Place = tuple[int, int]


@dataclass(frozen=True)
class Selection:
    """Selection of messages of a topic: all given conditions must hold; without any, all messages are selected.

    Args:
        start: the first message: an offset, ``earliest``, ``-n`` for the last n, or a time in ISO 8601 (UTC if it names
            no zone).
        end: the last message: an offset (included), ``latest``, or a time before which it was written.
        partition: only this partition.
        keys, tags: the allowed values.
        where: a predicate, like ``tag = 'new' and body.amount > 10``.
    """

    start: str | None = option(None, text())
    end: str | None = option(None, text())
    partition: int | None = option(None, whole(0))
    keys: tuple[str | bytes, ...] = ()
    tags: tuple[str | bytes, ...] = ()
    where: str | None = option(None, text())

    def __post_init__(self) -> None:
        problems = problems_in(self)
        for name in ("keys", "tags"):
            if isinstance(getattr(self, name), str | bytes):
                problems.append(Problem(name, repr(getattr(self, name)), "must be a tuple of them"))
        raise_problems(problems)

    @property
    def is_range(self) -> bool:
        """True if it selects by places and times only."""
        return not (self.keys or self.tags or self.where is not None)


class Choice:
    """Parsed selection.

    Args:
        selection: the selection to parse.

    Raises:
        PredicateError, InvalidName, ConfigError: it cannot be parsed.
    """

    def __init__(self, selection: Selection) -> None:
        parts: list[Node] = [] if selection.where is None else [parse_node(selection.where)]
        parts += [OneOf(Field("key"), _texts("key", selection.keys))] if selection.keys else []
        parts += [OneOf(Field("tag"), _texts("tag", selection.tags))] if selection.tags else []
        for name, place, op in (("start", selection.start, ">="), ("end", selection.end, "<")):
            if place is not None and _is_time(place):
                parts.append(Compare(Field("born_at"), op, read_time(place, name)))
        self.selection = selection
        self.predicate = Predicate(*parts)

    def ranges(self, session: Session, topic: Topic) -> list[OffsetRange]:
        """Return the ranges of the partitions that may hold chosen messages, by indexes alone.

        Raises:
            ConfigError: there is no such partition.
        """
        bounds = self.predicate.bounds
        if bounds.impossible:
            return []
        extents = {
            one.partition: Position(one.partition, one.start, one.end, one.start)
            for one in search.list_extents(session, topic.id)
        }
        only = self.selection.partition
        if only is not None and only not in extents:
            raise ConfigError([Problem("partition", str(only), f"topic {topic.name!r} has no such partition")])
        chosen = {number: one for number, one in extents.items() if only in (None, number) and _within(bounds, number)}
        if bounds.ids is not None:
            return self._by_id(session, topic.id, bounds, chosen)
        found = [self._range(session, topic.id, bounds, position) for position in chosen.values()]
        return [one for one in found if one]

    def _by_id(self, session: Session, topic_id: int, bounds: Bounds, chosen: dict[int, Position]) -> list[OffsetRange]:
        places = find_uids(session, topic_id, [parse_uid(one) for one in sorted(bounds.ids or ())])
        found = []
        for partition, offset in sorted(places.values()):
            if partition in chosen:
                whole = self._range(session, topic_id, bounds, chosen[partition])
                found += [whole.part(offset, offset + 1)] if whole.start <= offset < whole.end else []
        return found

    def _range(self, session: Session, topic_id: int, bounds: Bounds, position: Position) -> OffsetRange:
        first, beyond = max(bounds.lo, position.log_start), min(bounds.hi + 1, position.end)
        start, end = self.selection.start, self.selection.end
        if start is not None and not _is_time(start):
            first = max(first, _offset(position, start))
        if end is not None and not _is_time(end):
            beyond = min(beyond, _offset(position, end) + end.isdecimal())
        if bounds.bounds_time:
            first = max(first, find_offset_at(session, topic_id, position, bounds.born_from - _DISORDER))
            beyond = min(beyond, find_offset_at(session, topic_id, position, bounds.born_to + _DISORDER))
        return OffsetRange(topic_id, position.partition, first, beyond)


def _texts(what: str, values: tuple[str | bytes, ...]) -> tuple[str, ...]:
    return tuple((encode_key(what, value) or b"").decode(errors="surrogateescape") for value in values)


def _is_time(place: str) -> bool:
    return place not in ("earliest", "latest") and not re.fullmatch(r"-?\d{1,20}", place)


def _offset(position: Position, place: str) -> int:
    if place == "earliest":
        return position.log_start
    if place == "latest":
        return position.end
    return int(place) if place.isdecimal() else position.end + int(place)


def _within(bounds: Bounds, partition: int) -> bool:
    return bounds.partitions is None or partition in bounds.partitions


def in_steps(
    ranges: list[OffsetRange], size: int, after: Place | None = None, *, newest: bool = False
) -> Iterator[OffsetRange]:
    """Split ranges into steps of at most ``size`` offsets, in order of partition and offset.

    Args:
        after: begin after this place.
        newest: in reverse order; ``after`` is then the place before which to begin.
    """
    for extent in sorted(ranges, reverse=newest):
        if after is not None and extent.partition == after[0]:
            extent = extent.part(extent.start, after[1]) if newest else extent.part(after[1] + 1, extent.end)
        elif after is not None and (extent.partition > after[0]) == newest:
            continue
        yield from extent.steps(size, newest=newest)
