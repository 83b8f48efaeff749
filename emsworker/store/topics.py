"""Topics, partitions and groups."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from emsworker.core.counted import counted
from emsworker.core.errors import Conflict, GroupInUse, TopicDeleted, TopicInUse
from emsworker.core.model import Group, Topic
from emsworker.core.settings import settings_of
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Sql, Statements
from emsworker.store.groups import handlers, limits, task_limits, task_pauses
from emsworker.store.stream.guards import hold_group, hold_unmoved


class Columns:
    """Columns of the settings of topics or of groups, in the order of their declaration."""

    def __init__(self, owner: type[Topic | Group]) -> None:
        self._settings = {one.column or name: (name, one) for name, one in settings_of(owner).items()}
        self.columns = ", ".join(self._settings)
        self.values = ", ".join(f"%({column})s" for column in self._settings)
        changed = [column for column, (_, one) in self._settings.items() if one.changed]
        self.changes = ", ".join(f"{column} = %({column})s" for column in changed)

    def args(self, thing: Topic | Group) -> dict[str, Any]:
        """Return the settings of a topic or a group as parameters by column."""
        return {column: one.to_column(getattr(thing, name)) for column, (name, one) in self._settings.items()}

    def read(self, row: Sequence[Any]) -> list[Any]:
        """Return the settings in a row; a ``NULL`` is ``None``."""
        found = zip(self._settings.values(), row, strict=True)
        return [None if value is None else one.from_column(value) for (_, one), value in found]


_TOPIC, _GROUP = Columns(Topic), Columns(Group)
_SQL = Statements(
    __name__,
    topic_columns=_TOPIC.columns,
    topic_values=_TOPIC.values,
    topic_changes=_TOPIC.changes,
    group_columns=_GROUP.columns,
    group_values=_GROUP.values,
    group_changes=_GROUP.changes,
)


def _topic(row: tuple[Any, ...]) -> Topic:
    topic = Topic(*row[:2], *_TOPIC.read(row[2:-2]), *row[-2:-1])
    return replace(topic, former=tuple(row[-1].split())) if row[-1] else topic


def _group(row: tuple[Any, ...]) -> Group:
    return Group(*row[:3], *_GROUP.read(row[3:]))


def get_topic(session: Session, name: str) -> Topic | None:
    rows = session.rows(_SQL.get_topic, {"name": name})
    return _topic(rows[0]) if rows else None


def list_topics(session: Session, ids: Collection[int] | None = None) -> list[Topic]:
    """List topics by name.

    Args:
        ids: only these; ``None`` for all.
    """
    if ids is None:
        return [_topic(row) for row in session.rows(_SQL.list_topics)]
    return [_topic(row) for row in session.rows(_SQL.list_some_topics, {"ids": sorted(ids)})] if ids else []


def list_names(session: Session, limit: int) -> list[str]:
    """List the first names of topics in their order."""
    return [name for (name,) in session.rows(_SQL.list_names, {"limit": limit})]


def find_served(session: Session, names: Sequence[str]) -> dict[str, bool]:
    """Find the topics that this server has messages for, by name; false for one that another server keeps by now."""
    if not names:
        return {}
    return {name: bool(kept) for name, kept in session.rows(_SQL.find_served, {"names": list(names)})}


def find_topics(session: Session, names: Sequence[str]) -> set[str]:
    """Return which of these topics this server has a row of, if only to say who keeps it."""
    return {name for (name,) in session.rows(_SQL.find_topics, {"names": list(names)})} if names else set()


def list_pointers(session: Session) -> list[tuple[str, str, int]]:
    """List the servers that topics are kept on instead of here, with the first of these topics and their number."""
    return [(server, name, int(count)) for server, name, count in session.rows(_SQL.list_pointers)]


def create_topic(session: Session, name: str, *, server: str | None = None, **settings: Any) -> Topic:
    """Create a topic with its partitions, or return the existing one.

    Args:
        server: the server that keeps it, if it is not this one.
        settings: those of :class:`Topic`.
    """

    def work(session: Session) -> Topic:
        values = {"name": name, "server": server} | _TOPIC.args(Topic(0, name, **settings))
        topic_id = session.execute(_SQL.add_topic, values).insert_id
        session.execute(_SQL.add_guard, {"topic_id": topic_id, "moved": int(server is not None)})
        topic = _locked(session, topic_id, name)  # after the commit it may be deleted at any time
        _add_partitions(session, topic)
        return topic

    return session.transaction(work)


def _locked(session: Session, topic_id: int, name: str) -> Topic:
    """Return the topic as it is now, locked until the commit.

    Raises:
        TopicDeleted: it has been deleted.
    """
    rows = session.rows(_SQL.lock_topic, {"id": topic_id})
    if not rows:
        raise TopicDeleted(name)
    return _topic(rows[0])


def _add_partitions(session: Session, topic: Topic) -> None:
    for partition in topic.partition_numbers():
        closed = int(topic.server is not None)
        session.execute(_SQL.add_partition, {"topic_id": topic.id, "partition": partition, "closed": closed})
        session.execute(_SQL.add_filler, {"topic_id": topic.id, "partition": partition})


def change_topic(session: Session, topic: Topic) -> None:
    """Update a topic's settings; new partitions get a cursor for every group.

    Raises:
        TopicDeleted: it has been deleted.
    """

    def work(session: Session) -> None:
        _locked(session, topic.id, topic.name)
        session.execute(_SQL.change_topic, {"id": topic.id} | _TOPIC.args(topic))
        _add_partitions(session, topic)
        for group in list_groups(session):
            if group.topic_id == topic.id and hold_group(session, group.id):
                _add_cursors(session, topic, group.id, from_start=True)

    session.transaction(work)


def keep_at(session: Session, topic: Topic, server: str | None, *, move: int, last_move: int) -> None:
    """Note where a topic is kept from now on, with its settings; its partitions take messages only if that is here.

    A publisher that has looked the topic up before finds its partition closed, and looks it up again.

    Args:
        server: the name of the server; ``None`` for this one.
        move: the number of this move, which is higher than those of the topic's earlier ones.
        last_move: that of the last one here, read before all this was decided; see :func:`guards.last_move`.

    Raises:
        TopicDeleted: it has been deleted.
        TopicInUse: a transaction that has sent to the topic stays open, or another process has moved it since; nothing
            was changed.
    """

    def work(session: Session) -> None:
        numbers = {"move": move, "last_move": last_move}
        is_still_so = _lock_guard(session, topic, _SQL.move_guard, moved=int(server is not None), **numbers)
        if _locked(session, topic.id, topic.name).server == server and not is_still_so:
            return  # the answer was lost, or another process was faster
        if not is_still_so:
            raise being_moved(topic.name)
        values = {"id": topic.id, "server": server, "former": " ".join(topic.former)}
        session.execute(_SQL.keep_at, values | _TOPIC.args(topic))
        _add_partitions(session, replace(topic, server=server))
        session.execute(_SQL.close_partitions, {"topic_id": topic.id, "closed": int(server is not None)})
        for group in list_groups(session):
            if group.topic_id == topic.id and hold_group(session, group.id):
                _add_cursors(session, topic, group.id, from_start=True)

    session.transaction(work)


def point_at(session: Session, topic_id: int, server: str, last_move: int) -> None:
    """Let a pointer name the server that keeps the topic by now; nothing is changed if the topic has moved since.

    Args:
        last_move: that of the topic here, lower than the number of the move to that server.
    """

    def work(session: Session) -> None:
        if hold_unmoved(session, topic_id, last_move):  # as a move: the guard first, then the topic
            session.execute(_SQL.point_at, {"id": topic_id, "server": server})

    session.transaction(work)


def being_moved(topic: str) -> TopicInUse:
    """Return the error of a move that another process was faster than."""
    return TopicInUse(
        f"another process is moving topic {topic!r}; nothing was changed "
        "(`ems topics list` says where it is; try again if that is not where it should be)"
    )


def delete_topic(
    session: Session, topic: Topic, progress: Callable[[int], None] = lambda rows: None, *, force: bool = False
) -> None:
    """Delete a topic, its groups and its messages: first the names, so that they are not found, then rows in chunks.

    Args:
        progress: called with the number of rows of each chunk.
        force: delete even if groups have unfinished work.

    Raises:
        GroupInUse: a group has unfinished work, and ``force`` was not given; nothing was deleted.
        TopicInUse: a transaction that has sent to the topic stays open; nothing was deleted.
    """

    def work(session: Session) -> list[Group]:
        _lock_guard(session, topic, _SQL.close_guard)
        session.rows(_SQL.lock_topic, {"id": topic.id})
        groups = [group for group in list_groups(session) if group.topic_id == topic.id]
        for group in groups:
            _unlist_group(session, group, force)
        session.execute(_SQL.delete_topic, {"topic_id": topic.id})
        session.execute(_SQL.delete_partitions, {"topic_id": topic.id})
        session.execute(_SQL.delete_restored, {"topic_id": topic.id})
        session.execute(_SQL.delete_positions, {"topic_id": topic.id})
        session.execute(_SQL.delete_holds, {"topic_id": topic.id})
        return groups

    for group in session.transaction(work):
        _delete_log(session, group, progress)
    _delete_in_chunks(session, _SQL.delete_some_outbox, {"topic_id": topic.id}, progress)
    _delete_in_chunks(session, _SQL.delete_some_keys, {"topic_id": topic.id}, progress)
    _delete_in_chunks(session, _SQL.delete_some_messages, {"topic_id": topic.id}, progress)


def _lock_guard(session: Session, topic: Topic, change: Sql, **values: int) -> bool:
    """Change the guard before the transaction locks anything else: the transactions it waits for may hold the locks."""
    try:
        return bool(session.execute(change, {"topic_id": topic.id, **values}).affected)
    except Conflict as error:
        raise TopicInUse(
            f"a transaction that has sent to topic {topic.name!r} is still open; nothing was changed "
            "(let it end, and try again)"
        ) from error


def get_group(session: Session, topic: Topic, name: str) -> Group | None:
    rows = session.rows(_SQL.get_group, {"topic_id": topic.id, "name": name})
    return _group(rows[0]) if rows else None


def list_groups(session: Session, *, topic_id: int | None = None, ids: Collection[int] | None = None) -> list[Group]:
    """List groups by topic and name.

    Args:
        topic_id: only those of this topic.
        ids: only these; ``None`` for all.
    """
    if topic_id is not None:
        found = map(_group, session.rows(_SQL.list_groups_of, {"topic_id": topic_id}))
        return [group for group in found if ids is None or group.id in ids]
    if ids is None:
        return [_group(row) for row in session.rows(_SQL.list_groups)]
    return [_group(row) for row in session.rows(_SQL.list_some_groups, {"ids": sorted(ids)})] if ids else []


def find_group(session: Session, name: str) -> tuple[str, str] | None:
    """Return the topic and the name of a group of that name, or ``None``."""
    rows = session.rows(_SQL.find_group, {"name": name})
    return rows[0] if rows else None


def create_group(session: Session, topic: Topic, name: str, *, from_start: bool = True, **settings: Any) -> Group:
    """Create a group with a cursor in every partition, or return the existing one.

    Args:
        from_start: begin with the oldest message rather than with the next one.
        settings: those of :class:`Group`.

    Raises:
        TopicDeleted: the topic has been deleted.
    """

    def work(session: Session) -> Group:
        # The lock prevents that a partition is added between our reading their number and adding cursors.
        locked = _locked(session, topic.id, topic.name)
        values = {"topic_id": topic.id, "name": name} | _GROUP.args(Group(0, topic.id, name, **settings))
        _add_cursors(session, locked, session.execute(_SQL.add_group, values).insert_id, from_start)
        return _group(session.rows(_SQL.get_group, {"topic_id": topic.id, "name": name})[0])

    return session.transaction(work)


def _add_cursors(session: Session, topic: Topic, group_id: int, from_start: bool) -> None:
    for partition in topic.partition_numbers():
        log_start, end = session.rows(_SQL.get_extent, {"topic_id": topic.id, "partition": partition})[0]
        session.execute(
            _SQL.add_cursor,
            {"group_id": group_id, "partition": partition, "next_offset": log_start if from_start else int(end)},
        )


def change_group(session: Session, group: Group) -> None:
    """Update a group's settings."""
    session.change(_SQL.change_group, {"id": group.id} | _GROUP.args(group))


def count_unfinished(session: Session, group: Group) -> tuple[int, int]:
    """Return how many live claims and retries a group has."""
    args = {"group_id": group.id}
    return int(session.rows(_SQL.count_live_claims, args)[0][0]), int(session.rows(_SQL.count_retries, args)[0][0])


def delete_group(
    session: Session, group: Group, progress: Callable[[int], None] = lambda rows: None, *, force: bool = False
) -> None:
    """Delete a group: first its name and cursors, so that no client claims any more, then its log in chunks.

    Args:
        progress: called with the number of rows of each chunk.
        force: delete even if there are live claims or retries.

    Raises:
        GroupInUse: there are some, and ``force`` was not given; nothing was deleted.
    """
    session.transaction(lambda s: _unlist_group(s, group, force))
    _delete_log(session, group, progress)


def _unlist_group(session: Session, group: Group, force: bool) -> None:
    """Delete a group's name and cursors; the cursors are locked before the count, so that no claim is made between."""
    args = {"group_id": group.id}
    session.rows(_SQL.lock_cursors, args)
    claims, retries = count_unfinished(session, group)
    if (claims or retries) and not force:
        raise GroupInUse(
            f"group {group.name!r} has {counted(claims, 'live claim')} and {counted(retries, 'message')} waiting for "
            "a retry; nothing was deleted (stop its workers and let them finish; force=True deletes it all the same)"
        )
    session.execute(_SQL.delete_group, args)
    session.execute(_SQL.delete_cursors, args)
    limits.delete(session, group.id)
    handlers.delete(session, group.id)
    task_pauses.delete(session, group.id)
    task_limits.delete(session, group.id)
    session.execute(_SQL.delete_skip_policy, args)


def _delete_log(session: Session, group: Group, progress: Callable[[int], None]) -> None:
    """Delete until no row is left: a run in progress may turn its claim into a retry, or retries into a claim."""
    statements = (
        _SQL.delete_some_claims,
        _SQL.delete_some_retries,
        _SQL.delete_some_attempts,
        _SQL.delete_some_dead,
        _SQL.delete_some_skips,
    )
    while any([_delete_in_chunks(session, one, {"group_id": group.id}, progress) for one in statements]):
        pass


def _delete_in_chunks(session: Session, statement: Sql, args: dict[str, int], progress: Callable[[int], None]) -> bool:
    found = False
    while deleted := session.change(statement, args):
        progress(deleted)
        found = True
    return found
