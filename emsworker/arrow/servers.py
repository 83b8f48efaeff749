"""A read of topics on several servers, as one read for each server that keeps some of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

from emsworker.arrow.options import OffsetLimit, ReadOptions, TopicSelection
from emsworker.arrow.profile import call, call_reading, server_names
from emsworker.extending.database import Session
from emsworker.extending.errors import ConfigError, Problem, StoreUnavailable, UnknownGroup
from emsworker.extending.settings import MAIN
from emsworker.extending.stream import list_topics

T = TypeVar("T")


def parts_of(options: ReadOptions) -> list[ReadOptions]:
    """Return the options of the read on each server: with its name, and with the topics that it keeps.

    A topic that no server keeps is left to the main one, which knows the error. With the option ``server`` that server
    is read, and there also what is left of topics that have moved away.

    Raises:
        ConfigError: there is no such server.
        StoreUnavailable: a server is away that may keep one of the topics.
    """
    names = servers_of(options)
    if len(names) == 1:
        return [replace(options, server=names[0])]
    places = _places(options, names)
    wanted = _wanted(options.subscription, places)
    by_server: dict[str, list[str]] = {}
    for topic in wanted:
        by_server.setdefault(places.get(topic, MAIN), []).append(topic)
    return [_part(options, server, topics, wanted) for server, topics in by_server.items()]


def servers_of(options: ReadOptions) -> list[str]:
    """Return the names of the servers that are read: the one of the option ``server``, or all.

    Raises:
        ConfigError: there is no such server.
    """
    names = server_names(options.profile)
    if options.server is None:
        return list(names)
    if options.server not in names:
        fix = f"there is no such server; there are {', '.join(names)}"
        raise ConfigError([Problem("option server", repr(options.server), fix)])
    return [options.server]


def read_parts(options: ReadOptions, read: Callable[[ReadOptions, Session], list[T]]) -> list[T]:
    """Return what is read of each part, on its server; see :func:`parts_of`.

    Raises:
        UnknownGroup: no server has the group.
    """
    found, unknown = list[T](), list[UnknownGroup]()
    parts = parts_of(options)
    for part in parts:
        try:
            found += call_reading(part.profile, partial(read, part), part.server or MAIN)
        except UnknownGroup as error:
            unknown.append(error)
    if unknown and len(unknown) == len(parts):
        raise unknown[0]
    return found


def only_part(options: ReadOptions) -> ReadOptions:
    """Return the options of a read that can be of one server only.

    Raises:
        ConfigError: the topics are on several, or may be.
    """
    names = server_names(options.profile)
    fix = f"a query reads one server: name it ({', '.join(names)}), and begin a query for each"
    if options.server is None and len(names) > 1 and options.subscription.pattern is not None:
        raise ConfigError([Problem("option server", "not given", fix)])
    parts = parts_of(options)
    if len(parts) != 1:
        raise ConfigError([Problem("option server", "not given", fix)])
    return replace(options, server=parts[0].server)


def _places(options: ReadOptions, names: Collection[str]) -> dict[str, str]:
    """Return where topics are kept; an error of a server counts only if a topic is found nowhere else."""
    found, away = dict[str, str](), list[StoreUnavailable]()

    def kept(session: Session) -> list[str]:
        return [topic.name for topic in list_topics(session) if topic.server is None]

    for name in names:
        try:
            found |= dict.fromkeys(call(options.profile, kept, name), name)
        except StoreUnavailable as error:
            away.append(error)
    named = options.subscription.partitions or options.subscription.names
    if away and (options.subscription.pattern is not None or any(topic not in found for topic in named)):
        raise away[0]
    return found


def _wanted(chosen: TopicSelection, places: Mapping[str, str]) -> list[str]:
    if chosen.pattern is not None:
        pattern = chosen.pattern
        return [topic for topic in places if re.fullmatch(pattern, topic)]
    return list(dict.fromkeys(chosen.partitions if chosen.partitions is not None else chosen.names))


def _part(options: ReadOptions, server: str, topics: Collection[str], wanted: Collection[str]) -> ReadOptions:
    others = set(wanted) - set(topics)
    chosen = options.subscription
    partitions = None if chosen.partitions is None else {topic: chosen.partitions[topic] for topic in topics}
    return replace(
        options,
        server=server,
        subscription=TopicSelection(() if partitions is not None else tuple(topics), None, partitions),
        starting=_limit(options.starting, others),
        ending=_limit(options.ending, others),
    )


def _limit(limit: OffsetLimit, others: Collection[str]) -> OffsetLimit:
    """Return a limit without the topics of other servers."""
    offsets = limit.offsets if isinstance(limit.offsets, str) else _without(limit.offsets, others)
    times = None if limit.by_timestamp is None else _without(limit.by_timestamp, others)
    return replace(limit, offsets=offsets, by_timestamp=times)


def _without(places: Mapping[str, T], others: Collection[str]) -> dict[str, T]:
    return {topic: one for topic, one in places.items() if topic not in others}
