"""Extensions: what uses the queue and is not the queue, found by entry points.

A distribution that brings an extension names its declaration in the group ``ems.extensions``, as those of this wheel
do::

    [options.entry_points]
    ems.extensions =
        acme = acme_ems.extension:EXTENSION

A declaration is read by every command, so it names its parts as ``module:name``; each is imported when it is used. The
idea is that of pytest's plugins, with one value instead of hooks.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import Any

from emsworker.core.counted import counted
from emsworker.core.errors import ConfigError, Problem, repr_of
from emsworker.core.flush import ResultRow

GROUP = "ems.extensions"
log = logging.getLogger(__name__)

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Command:
    """A command of an extension.

    Args:
        target: a click command, as ``module:name``.
        help: the line of ``ems --help``.
    """

    target: str
    help: str


@dataclass(frozen=True)
class Measure:
    """A quantity that an extension measures for the rules of alarms.

    Args:
        target: a function of a session and rules that returns, for each rule by its name, the values by topic and name
            of what is measured, as ``module:name``; see :mod:`emsworker.alarms.measurements`. It is called on streams
            that have the extension's tables. A rule's ``group`` chooses by that name.
        help: a line of ``ems alarms create --help``.
        is_duration: the value is in seconds; otherwise it is a count.
    """

    target: str
    help: str
    is_duration: bool = True


@dataclass(frozen=True)
class DefaultStream:
    """The stream that is used where no address is given.

    Args:
        url: of the database.
        redis_url: of its Redis, if there is one.
        place: where it is, for a person.
    """

    url: str
    redis_url: str | None
    place: str


@dataclass(frozen=True)
class Extension:
    """The declaration of one extension; all but the name and the package is optional.

    Args:
        name: as ``ems migrate --with NAME`` takes it, and under which the versions of its tables are kept.
        package: its package. ``NNNN_title.sql`` files in a folder ``migrations`` of it create its tables.
        rights: a mapping of what each role may do with its tables, as ``module:NAME``; see
            :mod:`emsworker.store.engine.rights`.
        commands: by name; they follow those of the core in ``ems --help``.
        services: a function of a :class:`~emsworker.beat.services.LedStream` that returns the services of the leading
            beat, as ``module:name``. They run on streams that have the extension's tables.
        pages: a function without arguments that returns pages of the dashboard, as ``module:name``; see
            :mod:`emsworker.web.page`.
        search: a function of a database and of what was typed into the search field of the dashboard, as
            ``module:name``; it returns the path of one of its pages, or ``None`` if it knows nothing of that name.
        checks: a function without arguments that returns functions of a session and the settings, which yield findings
            of ``ems check``, as ``module:name``; see :mod:`emsworker.admin.check`.
        metrics: a function without arguments that returns functions of a session, which yield metric families of
            prometheus_client for those of the stream, as ``module:name``; see
            :mod:`emsworker.monitoring.metrics`.
        measures: what rules of alarms can measure, by the name that ``ems alarms create --on`` takes.
        needs_server: a function of a session, as ``module:name``, that yields lines about what the extension still
            needs the server for; ``ems servers retire`` prints them, and the server is not retired before.
        default_stream: a function without arguments, as ``module:name``, that returns the :class:`DefaultStream` to use
            where no address is given, or ``None``.
        follow: a function, as ``module:name``, that is told of the ends of calls whose header ``ems-follow`` begins
            with this extension's name. It appends statements to the transaction that acks them, ``follow(packet,
            results, topic_id, group)``.
        follow_in_memory: the same for the broker in memory: ``follow(broker, results)``.
        tasks: tasks that every group with tasks has, by name: functions, as ``module:name``, that are called with the
            route and the name of a message's task, and return the task, or ``None`` if there is none. What follows a
            colon in the name is theirs. A task is made when its first message comes.
        topics: beginnings of the names of topics that only its programs can write to: rows of ``ems_publish`` for them
            are refused.
    """

    name: str
    package: str
    rights: str | None = None
    commands: Mapping[str, Command] = field(default_factory=lambda: _NOTHING)
    services: str | None = None
    pages: str | None = None
    search: str | None = None
    checks: str | None = None
    metrics: str | None = None
    measures: Mapping[str, Measure] = field(default_factory=lambda: _NOTHING)
    needs_server: str | None = None
    default_stream: str | None = None
    follow: str | None = None
    follow_in_memory: str | None = None
    tasks: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    topics: tuple[str, ...] = ()


def load(target: str) -> Any:
    """Import a part of an extension.

    Args:
        target: ``module:name``.
    """
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


@functools.cache
def extensions() -> Mapping[str, Extension]:
    """Return the extensions that are installed, by name; those of this wheel first.

    One that cannot be imported is left out with a warning: it must not stop a worker.
    """
    from importlib.metadata import entry_points  # takes longer to import than this module's users may wait

    found: dict[str, Extension] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda one: (not one.value.startswith("emsworker."), one.name)):
        try:
            declared = point.load()
        except Exception as error:  # of somebody else's code
            log.warning("extension %r is left out: %s cannot be imported: %s", point.name, point.value, repr_of(error))
            continue
        if isinstance(declared, Extension) and declared.name not in found:
            found[declared.name] = declared
        else:
            log.warning("extension %r is left out: %s is no Extension of a new name", point.name, point.value)
    return MappingProxyType(found)


def extension(name: str) -> Extension:
    """Return an installed extension.

    Raises:
        ConfigError: there is none of this name.
    """
    try:
        return extensions()[name]
    except KeyError:
        fix = f"no such extension is installed; there are {', '.join(extensions()) or 'none'}"
        raise ConfigError([Problem("extension", repr(name), fix)]) from None


def tell(results: Iterable[ResultRow], to: Any, *place: object, in_memory: bool = False) -> None:
    """Tell the extensions that follow calls of their ends.

    A header that names none is passed over with a warning: anybody who sends can write it, and its message has ended.

    Args:
        to: the packet of the acks, or the broker in memory.
        place: of the calls in MySQL: the number of their topic, and the name of their group.
    """
    told: dict[str, list[ResultRow]] = {}
    for row in results:
        if row.follow is not None:
            told.setdefault(row.follow.partition(":")[0], []).append(row)
    for name, rows in told.items():
        one = extensions().get(name)
        target = None if one is None else one.follow_in_memory if in_memory else one.follow
        if target is None:
            log.warning("%s ended that extension %r follows, which is not here", counted(len(rows), "call"), name)
        else:
            load(target)(to, rows, *place)


def parts(kind: str, *arguments: object) -> Iterator[tuple[Extension, list[Any]]]:
    """Yield the parts of a kind, such as ``services``, of each extension that has any.

    An extension whose parts cannot be made is left out with a warning: it must not stop those of the others.

    Args:
        kind: the attribute of the declaration that names what makes them.
        arguments: what makes them is called with these.
    """
    for one in extensions().values():
        if (target := getattr(one, kind)) is None:
            continue
        try:
            made = [*load(target)(*arguments)]
        except Exception as error:  # of somebody else's code, or a library that its extra installs
            log.warning("%s of extension %r are left out: %s", kind, one.name, repr_of(error))
        else:
            yield one, made


def task_maker(name: str) -> Callable[..., Any] | None:
    """Return the function of an extension that makes the task of this name, if one has it."""
    kind = name.partition(":")[0]
    for one in extensions().values():
        if kind in one.tasks:
            found: Callable[..., Any] = load(one.tasks[kind])
            return found
    return None


def measures() -> Iterator[tuple[Extension, str, Measure]]:
    """Yield what the extensions measure for alarms, by name."""
    for one in extensions().values():
        yield from ((one, name, measure) for name, measure in one.measures.items())


def default_stream() -> DefaultStream | None:
    """Return the stream that an extension gives where no address is given; ``None`` if none does."""
    for one in extensions().values():
        if one.default_stream is not None and (found := load(one.default_stream)()) is not None:
            assert isinstance(found, DefaultStream)
            return found
    return None


def default_url() -> str | None:
    """Return the address of the stream that is used where none is given, if there is one."""
    found = default_stream()
    return found.url if found is not None else None
