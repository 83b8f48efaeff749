"""Retirement of one of several servers: its topics move away, and it is looked for what would miss it.

Nothing is written down about a retirement. It is over when nothing is found any more; each call goes on where the last
one stopped, because every move does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from emsworker.admin.monitoring import GroupLag, Monitoring
from emsworker.admin.placement import TopicMove
from emsworker.admin.servers import Servers, quick_databases
from emsworker.admin.stream import Admin
from emsworker.app import Ems
from emsworker.core.counted import counted, plural
from emsworker.core.errors import ConfigError, EmsError, MoveUnfinished, Problem, StoreUnavailable
from emsworker.core.extension import load
from emsworker.core.model import Topic, TopicKind
from emsworker.core.process.clock import ticks
from emsworker.core.servers import MAIN, check_apart, parse_servers, place
from emsworker.store.cluster import clients
from emsworker.store.engine.database import Database
from emsworker.store.engine.schema import check_version, present_extensions, stream_id
from emsworker.store.engine.session import Session
from emsworker.store.inspect import lists
from emsworker.store.inspect.monitoring import list_extents
from emsworker.store.stream import dedup, intake
from emsworker.store.topics import list_groups, list_topics

_LOOK_S, _ALL_S = 0.5, 30.0
_COUNTED = 10_000
_NAMED = 5


@dataclass(frozen=True)
class Remains:
    """Remains of a server that is to be retired; each line of text names what it is about.

    Attributes:
        topics: those that it keeps, and the server to which each moves.
        needed: what does not work without it.
        passing: those of them that end by themselves while workers and beats of the server run.
        lost: what is gone with it, and nobody needs to run.
    """

    topics: Mapping[str, str]
    needed: tuple[str, ...]
    passing: tuple[str, ...]
    lost: tuple[str, ...]


@dataclass(frozen=True)
class _Part:
    """Answer of one server: its topics, those with messages in its outbox, and its live processes and beats that list
    the server to be retired.
    """  # noqa: D205 - one sentence

    topics: Sequence[Topic]
    waiting: frozenset[str]
    processes: Sequence[str]
    stream: str


class Retirement:
    """The retirement of a server.

    Args:
        app: has the setting `servers`, in which the server still is, without patterns.
        name: of the server.
        to: the server that gets all its topics; by default each goes where the patterns of the others place it.

    Raises:
        ConfigError: it is the main server, there is none of that name, or topics are still created there.
    """

    def __init__(self, app: Ems, name: str, to: str | None = None) -> None:
        app.streams.server(name)
        self._placement = parse_servers(app.settings.servers)
        if name == MAIN:
            fix = "is the server of EMS_URL, on which the keys of app.once() are; it cannot be retired"
            raise ConfigError([Problem("server", repr(name), fix)])
        if to is not None:
            app.streams.server(to)
        if to == name:
            raise ConfigError([Problem("to", repr(to), "is the server that is to be retired; name another one")])
        patterns = next(one.patterns for one in self._placement if one.name == name)
        if patterns:
            fix = (
                f"topics are still created on {name!r} by these patterns; take them out of EMS_SERVERS of every "
                "process, and leave the name and the address"
            )
            raise ConfigError([Problem("EMS_SERVERS", " ".join(patterns), fix)])
        self._app, self._name, self._target = app, name, to
        self._servers = Servers(quick_databases(app))
        self._unmoved: dict[str, str] = {}  # why topics could not be moved

    def look(self) -> Remains:
        """Look at what is left; nothing is changed.

        Raises:
            StoreUnavailable: not all servers answer, so that it is not known what points to this one.
        """
        parts = self._parts()
        database = self._servers.databases[self._name]
        own = parts[self._name].topics
        names = {topic.id: topic.name for topic in own}
        lags = Monitoring(database).lag(_COUNTED)
        kept = {topic.name: self._goes_to(topic.name) for topic in own if topic.server is None}
        passing = [*self._unfinished(lags, kept), *self._waiting(parts, set(names.values()))]
        passing += database.call(_plain_rows)
        needed = [*self._immovable(own), *self._pointers(parts), *self._processes(parts)]
        needed += [text for _, text in sorted(self._unmoved.items())]
        needed += database.call(_needs_of_extensions)
        lost = [*self._losses(database, lags), *database.call(lambda session: _unread(session, own))]
        return Remains(kept, (*needed, *passing), tuple(passing), tuple(lost))

    def run(self, timeout_s: float | None = None, report: Callable[[str], None] = lambda topic: None) -> Remains:
        """Move the server's topics, wait for their groups, and look at what is left.

        All topics are moved first, so that their groups finish side by side.

        Args:
            timeout_s: seconds to wait for groups, and for messages that are forwarded; by default for ever.
            report: called with the name of each topic, when it has been moved and whenever it is waited for.

        Returns:
            what is left; the server is not needed any more if there is neither a topic nor anything `needed`.

        Raises:
            StoreUnavailable: not all servers answer.
        """
        until = None if timeout_s is None else ticks() + timeout_s
        holders = self._holders()
        self._unmoved = {}
        waiting = [topic for topic, target in holders.items() if not self._move(topic, target, 0.0, report)]
        for topic in waiting:
            self._move(topic, holders[topic], None if until is None else max(0.0, until - ticks()), report)
        while (left := self.look()).passing and not left.topics and (until is None or ticks() < until):
            report(self._name)
            time.sleep(_LOOK_S)
        return left

    def _move(self, topic: str, target: str, timeout_s: float | None, report: Callable[[str], None]) -> bool:
        """Move a topic, or finish its move; return False if groups have something left."""
        try:
            TopicMove(self._app, topic, target).run(timeout_s, lambda left: report(topic))
        except MoveUnfinished:
            return False
        except EmsError as error:  # the others need not wait for it
            self._unmoved[topic] = f"topic {topic!r} was not moved to {target!r}: {error}"
        report(topic)
        return True

    def _goes_to(self, topic: str) -> str:
        return self._target or place(topic, self._placement)

    def _holders(self) -> dict[str, str]:
        """Return where each topic is to be that is here, was here, or of which another server says so."""
        parts = self._parts()
        kept = {topic.name: name for name, part in parts.items() for topic in part.topics if topic.server is None}
        here = {topic.name for topic in parts[self._name].topics if topic.kind is not TopicKind.BROADCAST}
        told = {topic.name for part in parts.values() for topic in part.topics if topic.server == self._name}
        moving = {  # closed here, and not open there yet
            topic.name: topic.server
            for topic in parts[self._name].topics
            if topic.server is not None and topic.name in told - kept.keys()
        }
        return moving | {
            name: self._goes_to(name) if kept[name] == self._name else kept[name]
            for name in sorted((here | told) & kept.keys())
        }

    def _parts(self) -> dict[str, _Part]:
        found = self._servers.ask(self._read, _ALL_S)
        parts = {}
        for name, part in found.items():
            if isinstance(part, StoreUnavailable):
                raise StoreUnavailable(
                    f"it is not known what points to server {self._name!r}, because server {name!r} is away: {part}"
                ) from part
            if isinstance(part, EmsError):
                raise part
            parts[name] = part
        check_apart({name: part.stream for name, part in parts.items()})
        return parts

    def _read(self, name: str, database: Database) -> _Part:
        def work(session: Session) -> _Part:
            check_version(session)
            topics = list_topics(session)
            delayed = lists.delayed_topics(session)
            leaders = [row for row in clients.list_leaders(session) if row.alive]
            beats = {row.holder for row in leaders if name == self._name or row.service == f"forward:{self._name}"}
            processes = [*clients.find_with(session, self._name), *(f"the beat of {holder}" for holder in beats)]
            waiting = frozenset(one.name for one in topics if one.id in delayed)
            return _Part(topics, waiting, sorted(processes), stream_id(session))

        return database.call(work)

    # -- what needs it -------------------------------------------------------------------------------------------------

    def _immovable(self, own: Sequence[Topic]) -> Iterator[str]:
        for topic in own:
            if topic.server is None and topic.kind is TopicKind.BROADCAST:
                yield (
                    f"topic {topic.name!r} is a broadcast topic, which cannot be moved; `ems topics delete "
                    f"{topic.name} --server {self._name}` deletes it, and its publishers create it anew"
                )

    def _pointers(self, parts: Mapping[str, _Part]) -> Iterator[str]:
        for server, part in parts.items():
            found = [topic.name for topic in part.topics if topic.server == self._name]
            if found:
                yield (
                    f"server {server!r} says that {counted(len(found), 'topic')} {plural(len(found), 'is')} on "
                    f"{self._name!r}: {_some(found)}; of one that was deleted there, `ems topics delete {found[0]} "
                    f"--server {server}` deletes the rest"
                )

    def _processes(self, parts: Mapping[str, _Part]) -> Iterator[str]:
        found = [f"{process} on {server!r}" for server, part in parts.items() for process in part.processes]
        if found:
            yield (
                f"{len(found)} live {plural(len(found), 'process')} {plural(len(found), 'has')} {self._name!r} in "
                f"EMS_SERVERS: {_some(found)}; when nothing else is left, start them again without it"
            )

    def _unfinished(self, lags: Sequence[GroupLag], kept: Mapping[str, str]) -> Iterator[str]:
        for one in lags:
            if one.lag and one.topic.name not in kept:
                paused = ", and is paused: resume it, or delete it" if one.group.paused else ""
                yield (
                    f"group {one.group.name!r} of topic {one.topic.name!r} has {counted(one.lag, 'message')} left on "
                    f"{self._name!r}{paused}"
                )

    def _waiting(self, parts: Mapping[str, _Part], had: set[str]) -> Iterator[str]:
        """Tell of messages that are to be forwarded: from here, or to topics of which some were accepted here."""
        for server, part in parts.items():
            away = {topic.name for topic in part.topics if topic.server is not None}
            found = sorted(part.waiting & (away if server == self._name else away & had))
            if found:
                yield (
                    f"messages wait in the outbox of server {server!r} to be forwarded, of "
                    f"{counted(len(found), 'topic')}: {_some(found)}; a beat of that server does it"
                )

    # -- what is gone with it ------------------------------------------------------------------------------------------

    def _losses(self, database: Database, lags: Sequence[GroupLag]) -> Iterator[str]:
        dead = [f"{one.topic.name}/{one.group.name} ({one.dead})" for one in lags if one.dead]
        if dead:
            yield f"dead letters of {_some(dead)}; `ems dead requeue` has them run again, here, while workers are there"
        last = database.call(dedup.find_last)
        if last is not None:
            topic, until = last
            yield f"deduplication keys; the last one, of topic {topic!r}, counts until {until:%Y-%m-%d %H:%M:%S} UTC"
        if refused := Monitoring(database).refused(_COUNTED):
            yield f"{counted(refused, 'row')} of ems_publish, refused; `ems refused list` shows them"
        admin = Admin(database)
        holds = [f"{one.name} of {one.topic}" for one in admin.readers.holds() if not one.lost]
        if holds:
            yield f"the places of readers: {_some(holds)}; let them read to the end, and `ems readers release` them"
        rules = [one.rule.name for one in admin.alarms.list(addresses=False)]
        if rules:
            yield f"alarm rules: {_some(rules)}; create them on the servers of their topics, and delete them here"


def _needs_of_extensions(session: Session) -> list[str]:
    needy = (one.needs_server for one in present_extensions(session) if one.needs_server is not None)
    return [text for target in needy for text in load(target)(session)]


def _plain_rows(session: Session) -> list[str]:
    waiting = intake.count_waiting(session, _COUNTED)
    if not waiting:
        return []
    return [
        f"{counted(waiting, 'row')} of ems_publish {plural(waiting, 'is')} not sent yet; a beat of the server does it"
    ]


def _unread(session: Session, own: Sequence[Topic]) -> list[str]:
    with_groups = {group.topic_id for group in list_groups(session)}
    filled = {one.topic_id for one in list_extents(session) if one.end > one.log_start}
    names = [one.name for one in own if one.server is not None and one.id in filled and one.id not in with_groups]
    if not names:
        return []
    return [f"messages of {counted(len(names), 'topic')} that no group was there to run: {_some(names)}"]


def _some(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:_NAMED]) + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")
