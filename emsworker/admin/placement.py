"""Moving of a topic from one server to another, while it is used.

Sends go to the new server from the moment at which the partitions of the old one are closed; nothing that was committed
before can follow. The groups of the new server are paused until those of the old one have finished: so every group runs
each message once, and those of a key in their order. Each step can be repeated: after a crash, move again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from emsworker.admin.monitoring import GroupLag, Monitoring
from emsworker.admin.servers import Servers, quick_databases
from emsworker.admin.stream import Admin
from emsworker.app import Ems
from emsworker.core.counted import plural
from emsworker.core.errors import (
    ConfigError,
    EmsError,
    MoveUnfinished,
    Problem,
    StoreUnavailable,
    TopicInUse,
    UnknownTopic,
)
from emsworker.core.model import Group, Topic, TopicKind
from emsworker.core.process.clock import ticks
from emsworker.core.servers import check_apart, later_servers
from emsworker.core.settings import settings_of
from emsworker.store.cluster import alarms, clients, schedules
from emsworker.store.engine.database import Database
from emsworker.store.engine.schema import server_now, stream_id
from emsworker.store.engine.session import Session
from emsworker.store.groups import limits, task_pauses
from emsworker.store.stream import forwards
from emsworker.store.stream.guards import last_move
from emsworker.store.topics import (
    being_moved,
    change_group,
    create_group,
    create_topic,
    get_topic,
    keep_at,
    list_groups,
    point_at,
)

_LOOK_S = 0.2
_PAGE = 500
_NAMED = 5


@dataclass(frozen=True)
class Moved:
    """Outcome of a move.

    Attributes:
        sources: the servers that the topic was on.
        groups: the number of groups that run on the new server now.
        unread: the servers on which messages of the topic stay that no group was there to run; groups that are created
            on the new server begin after them.
        untold: the servers that were away: if they have a row of the topic, it does not name the new server yet. The
            same move, given again, tells them.
        alarms: by server, the alarm rules that watched the topic there and stay: rules of every topic that the new
            server has not, or has otherwise, and rules of this one that fire, or whose name is taken on the new server.
    """

    topic: str
    sources: tuple[str, ...]
    target: str
    groups: int
    unread: tuple[str, ...] = ()
    untold: tuple[str, ...] = ()
    alarms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class TopicMove:
    """A move of one topic.

    Args:
        app: has the setting `servers`.
        topic: its name.
        target: the server that will keep it.

    Raises:
        ConfigError: there is no such server.
    """

    def __init__(self, app: Ems, topic: str, target: str) -> None:
        self._app, self._topic, self._target = app, topic, target
        app.streams.server(target)
        self._databases: dict[str, Database] = {}  # of the servers that have answered in this run
        self._away: dict[str, EmsError] = {}

    def run(
        self,
        timeout_s: float | None = None,
        report: Callable[[Sequence[GroupLag]], None] = lambda left: None,
        *,
        force: bool = False,
    ) -> Moved:
        """Move the topic, and wait until every group has gone over.

        Args:
            timeout_s: seconds to wait for the groups; by default for ever.
            report: called with what the groups of the old server have left, at each look.
            force: move it even if live processes do not know the new server.

        Raises:
            UnknownTopic: there is no such topic.
            ConfigError: it is a broadcast topic, or on several servers.
            TopicInUse: live processes do not know the new server, and ``force`` was not given; or another process
                is moving it. Nothing was changed.
            StoreUnavailable: the new server is away, or one that may keep the topic, or that may have accepted what
                waits in the outbox of the new one. Nothing was changed.
            MoveUnfinished: a group has not finished in time, or the server is away on which it has to.
        """
        rows = self._look()
        source = self._find_source(rows)
        if source != self._target:
            if not force:
                self._check_processes()
            self._check_copies(rows, source)
            self._switch(source)
        self._tell()
        self._check_last()
        sources = self._sources()
        for name in sources:
            self._take_schedules_over(self._databases[name])
            self._copy_alarms(self._databases[name])
        done = self._let_groups_over(sources, None if timeout_s is None else ticks() + timeout_s, report)
        unread = tuple(name for name in sources if self._is_unread(self._databases[name]))
        stay = {name: rules for name in sources if (rules := self._drop_alarms(self._databases[name]))}
        return Moved(self._topic, tuple(sources), self._target, done, unread, tuple(self._away), stay)

    def _look(self) -> dict[str, Topic | None]:
        """Return the rows of the topic on the servers that answer within seconds; without the others this run does.

        Raises:
            EmsError: the new server cannot be used.
            ConfigError: two servers are one.
        """

        def read(_: str, database: Database) -> tuple[str, Topic | None]:
            try:
                return database.call(stream_id), self._row(database)
            finally:
                database.thread_session().close()

        found = Servers(quick_databases(self._app)).ask(read)
        self._away = {name: row for name, row in found.items() if isinstance(row, EmsError)}
        if self._target in self._away:
            raise self._away[self._target]
        answers = {name: answer for name, answer in found.items() if not isinstance(answer, EmsError)}
        check_apart({name: stream for name, (stream, _) in answers.items()})
        rows = {name: row for name, (_, row) in answers.items()}
        self._databases = {name: self._app.streams.server(name).database for name in rows}
        return rows

    @property
    def _to(self) -> Database:
        return self._databases[self._target]

    def _check_processes(self) -> None:
        """Refuse a move after which processes that run would fail at each use of the topic."""
        found = [
            f"{process} on {name!r}"
            for name, database in self._databases.items()
            for process in database.call(lambda session: clients.find_without(session, self._target))
        ]
        if found:
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            raise TopicInUse(
                f"{len(found)} live {plural(len(found), 'process')} would not find topic {self._topic!r} on server "
                f"{self._target!r}, because their EMS_SERVERS does not name it: {', '.join(found[:_NAMED])}{more}; "
                "nothing was changed (start them again with it, or use force)"
            )

    def _tell(self) -> None:
        """Let the pointers of all servers name the one that keeps the topic: nobody depends on those in between.

        A server that had the topic later than this move brought it here knows better; one that is away is told by the
        next move, or when this one is given again (:attr:`Moved.untold`).
        """
        kept, move = self._read(self._to)
        for name, database in self._databases.items():
            with suppress(StoreUnavailable):
                row = self._row(database)
                if kept.server is not None or row is None or row.server in (None, self._target) or name == self._target:
                    continue
                last = self._last_move(database, row)
                if last < move:
                    database.call(partial(point_at, topic_id=row.id, server=self._target, last_move=last))

    def _check_copies(self, rows: dict[str, Topic | None], source: str) -> None:
        """Refuse if messages wait in the outbox of the new server of which one that is away may have a copy.

        Before the topic is closed: what comes into that outbox later is offered to no server but the present one.
        """
        here, there = rows[source], rows[self._target]
        if here is None or there is None:
            return
        later = [name for name in later_servers(here.former, self._target) if name in self._away]
        waits: bool = self._to.call(partial(forwards.is_any_waiting, topic_id=there.id))
        if later and waits:
            raise StoreUnavailable(
                f"messages of topic {self._topic!r} wait in the outbox of server {self._target!r}, and "
                f"{_named(later)} may have sent them already, but is away; nothing was changed "
                f"({self._away[later[0]]})"
            )

    def _check_last(self) -> None:
        """Refuse to let groups begin while the server is away on which they may have something left.

        Groups that run where the topic was last have finished where it was before.
        """
        kept = self._row(self._to)
        if kept is None or not kept.former or (last := kept.former[-1]) not in self._away:
            return
        waiting = [group.name for group in self._groups(self._to, kept) if group.paused]
        if waiting:
            raise MoveUnfinished(
                f"topic {self._topic!r} takes messages on server {self._target!r} now, but server {last!r}, which had "
                f"it before, is away, and these groups may have messages left there: {', '.join(waiting)}; their new "
                f"messages wait. Move it again when that server is back ({self._away[last]})"
            )

    def _sources(self) -> list[str]:
        """Return the servers that the topic was on, in the order in which they gave it up."""
        rows = {name: self._row(database) for name, database in self._databases.items()}
        kept = rows[self._target]
        former = () if kept is None else kept.former
        found = [name for name, row in rows.items() if row is not None and row.server == self._target]
        return sorted(found, key=lambda name: former.index(name) if name in former else -1)

    def _is_unread(self, database: Database) -> bool:
        admin = Admin(database)
        return not admin.groups(self._topic) and admin.count_messages(admin.topic(self._topic)) > 0

    def _row(self, database: Database) -> Topic | None:
        return database.call(lambda session: get_topic(session, self._topic))

    def _find_source(self, rows: dict[str, Topic | None]) -> str:
        holders = [name for name, row in rows.items() if row is not None and row.server is None]
        if len(holders) > 1:
            fix = f"is kept on several servers: {', '.join(holders)}; move or delete what is on all but one"
            raise ConfigError([Problem("topic", repr(self._topic), fix)])
        if holders:
            found = rows[holders[0]]
            assert found is not None, "it was found there"
            found.check_kind(TopicKind.CLUSTER)
            return holders[0]
        return self._find_closed(rows)

    def _find_closed(self, rows: dict[str, Topic | None]) -> str:
        """Find the server that has given the topic up in a move that was interrupted: it has the last number."""
        moves = {name: self._last_move(self._databases[name], row) for name, row in rows.items() if row is not None}
        source = max(moves, key=moves.__getitem__, default=None)
        holder = None if source is None or (row := rows[source]) is None else row.server
        # Nobody can have had the topic since it was closed for a server that has not opened it.
        if self._away and not (holder == self._target and moves[source or ""] > moves.get(self._target, 0)):
            first = next(iter(self._away.values()))
            raise StoreUnavailable(
                f"none of the servers that answer keeps topic {self._topic!r}, and {_named(self._away)} may; nothing "
                f"was changed ({first})"
            )
        if source is None:
            raise UnknownTopic(
                f"there is no topic {self._topic!r} on any server; `ems topics list` shows those that exist"
            )
        if holder != self._target:
            fix = f"is being moved from server {source!r} to {holder!r}; finish that first"
            raise ConfigError([Problem("topic", repr(self._topic), fix)])
        return source

    def _switch(self, source: str) -> None:
        """Prepare the new server, close the partitions of the old one, and open those of the new one.

        What is read is still true when the topic is closed or opened, or that is not done: so of two processes that
        move a topic at once, one changes nothing.
        """
        origin = self._databases[source]
        here, here_last = self._read(origin)
        values = {name: getattr(here, name) for name in settings_of(Topic)}
        self._to.call(lambda session: create_topic(session, self._topic, server=source, **values))
        there, there_last = self._read(self._to)
        is_closed = here.server == self._target and here_last > there_last  # by a move that was interrupted
        if there.server is None or not (here.server is None or is_closed):
            raise being_moved(self._topic)
        for group in self._groups(origin, here):
            self._prepare(origin, there, group)
        move = here_last if is_closed else max(here_last, there_last) + 1
        if not is_closed:
            origin.call(partial(keep_at, topic=here, server=self._target, move=move, last_move=here_last))
        former = (*here.former, source)
        self._drop_forwarded(there, there_last, former)
        settled = replace(there, **values, former=tuple(name for name in former if name != self._target))
        self._to.call(partial(keep_at, topic=settled, server=None, move=move, last_move=there_last))

    def _read(self, database: Database) -> tuple[Topic, int]:
        """Return the row of the topic on a server, and the number of the move that made it so."""
        row = self._row(database)
        while row is not None:
            last = self._last_move(database, row)
            row = self._row(database)
            if row is not None and self._last_move(database, row) == last:
                return row, last
        raise UnknownTopic(f"topic {self._topic!r} was deleted while it was to be moved")

    def _last_move(self, database: Database, row: Topic) -> int:
        return database.call(partial(last_move, topic_id=row.id))

    def _take_schedules_over(self, origin: Database) -> None:
        times = origin.call(lambda session: schedules.list_of_topic(session, self._topic))
        self._to.call(lambda session: session.transaction(lambda s: schedules.take_over(s, times)))
        for row in times:
            origin.call(partial(schedules.delete, name=row[0]))

    def _copy_alarms(self, origin: Database) -> None:
        """Have the topic watched on both servers by its rules, under its silences, while its groups go over."""
        known = {rule.name for rule in self._to.call(alarms.list_rules)}
        for rule in origin.call(alarms.list_rules):
            if rule.topic == self._topic and rule.name not in known:
                self._to.call(partial(alarms.add_rule, rule=rule))
        now = origin.call(server_now)
        silenced = {(one.rule, one.topic, one.group) for one in self._to.call(alarms.list_silences)}
        for one in origin.call(alarms.list_silences):
            place = (one.rule, one.topic, one.group)
            left_s = (one.ends_at - now).total_seconds()
            if one.topic == self._topic and place not in silenced and left_s > 0:
                silence = partial(
                    alarms.add_silence, rule=one.rule, topic=one.topic, group=one.group, reason=one.reason
                )
                self._to.call(partial(silence, for_s=left_s))

    def _drop_alarms(self, origin: Database) -> tuple[str, ...]:
        """Delete the rules of the topic that the new server has; return those that watched the topic here and stay.

        One that fires stays until it is resolved, because its receivers would not be told.
        """
        copied = {rule.name: rule for rule in self._to.call(alarms.list_rules)}
        firing = {rule for rule, _, _ in origin.call(alarms.list_firing)}
        stay = []
        for rule in origin.call(alarms.list_rules):
            if rule.metric.of_stream or rule.topic not in (None, self._topic):
                continue
            if copied.get(rule.name) != rule or (rule.topic is not None and rule.name in firing):
                stay.append(rule.name)
            elif rule.topic is not None:
                origin.call(partial(alarms.delete_rule, name=rule.name))
        return tuple(stay)

    def _drop_forwarded(self, there: Topic, there_last: int, former: Sequence[str]) -> None:
        """Delete from the outbox of the new server what one that had the topic later has accepted: it has a copy."""
        waiting = self._to.call(lambda session: forwards.list_waiting(session, there.id))
        for name in later_servers(former, self._target):
            row = self._row(self._databases[name]) if name in self._databases else None
            if row is None:
                continue
            for uids in (waiting[start : start + _PAGE] for start in range(0, len(waiting), _PAGE)):
                accepted = self._databases[name].call(partial(forwards.find_accepted, topic_id=row.id, uids=uids))
                self._to.call(partial(forwards.delete, topic_id=there.id, uids=sorted(accepted), last_move=there_last))

    def _groups(self, database: Database, topic: Topic) -> list[Group]:
        return [group for group in database.call(list_groups) if group.topic_id == topic.id]

    def _prepare(self, origin: Database, topic: Topic, group: Group) -> None:
        """Create a group on the new server, with all that belongs to it, and pause it."""
        values = {name: getattr(group, name) for name in settings_of(Group)}

        def create(session: Session) -> Group:
            return create_group(session, topic, group.name, **values | {"paused": True})

        created = self._to.call(create)
        self._to.call(lambda session: change_group(session, replace(created, **values | {"paused": True})))
        before, after = Admin(origin), Admin(self._to)
        limit = before.limits.get(self._topic, group.name)
        if limit:
            self._to.call(lambda session: limits.set_limit(session, created.id, limit))
        for _, task in origin.call(lambda session: task_pauses.list_pauses(session, [group.id])):
            self._to.call(partial(task_pauses.pause, group=created, task=task))
        policy = before.backlogs.policies().get(group.id)
        if policy is not None:
            after.backlogs.set_policy(self._topic, group.name, policy)

    def _let_groups_over(
        self, sources: Sequence[str], until: float | None, report: Callable[[Sequence[GroupLag]], None]
    ) -> int:
        """Let each group begin on the new server as soon as it has finished on all old ones; return how many."""
        gone = set[str]()
        while True:
            lags = [(name, lag) for name in sources for lag in self._lags(name)]
            left = [(name, lag) for name, lag in lags if lag.lag and lag.group.name not in gone]
            behind = {lag.group.name for _, lag in left}
            # The last server's group counts: its settings are those that were taken along.
            for group in {lag.group.name: lag.group for _, lag in lags}.values():
                if group.name not in behind | gone:
                    gone.add(group.name)
                    self._begin(group)
            report([lag for _, lag in left])
            if not left:
                return len(gone)
            if until is not None and ticks() > until:
                raise self._unfinished(left)
            time.sleep(_LOOK_S)

    def _lags(self, name: str) -> list[GroupLag]:
        return [lag for lag in Monitoring(self._databases[name]).lag() if lag.topic.name == self._topic]

    def _unfinished(self, left: Sequence[tuple[str, GroupLag]]) -> MoveUnfinished:
        names = ", ".join(repr(name) for name in dict.fromkeys(name for name, _ in left))
        said = ", ".join(f"{lag.group.name}{' (paused)' if lag.group.paused else ''} {lag.lag}" for _, lag in left)
        return MoveUnfinished(
            f"topic {self._topic!r} takes messages on server {self._target!r} now, but groups have messages left on "
            f"{names}: {said}; their new messages wait. Let them finish, and move it again"
        )

    def _begin(self, group: Group) -> None:
        admin = Admin(self._to)
        names = {one.name for _, one in admin.groups(self._topic)}
        if not group.paused and group.name in names:
            admin.change_group(self._topic, group.name, paused=False)


def _named(servers: Iterable[str]) -> str:
    return " and ".join(f"server {name!r}" for name in servers)
