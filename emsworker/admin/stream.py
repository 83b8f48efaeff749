"""Administration of topics and groups, behind ``ems topics`` and ``ems groups``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import emsworker.admin.cursors as cursors
from emsworker.admin.alarms import Alarms
from emsworker.admin.backlogs import Backlogs
from emsworker.admin.cursors import Move
from emsworker.admin.dead import DeadLetters
from emsworker.admin.limits import GroupLimits
from emsworker.admin.lists import Lists
from emsworker.admin.messages import Messages
from emsworker.admin.readers import Readers
from emsworker.admin.refused import Refused
from emsworker.admin.replay import Replay
from emsworker.admin.schedules import Schedules
from emsworker.admin.selection import Selection
from emsworker.admin.tasks import Tasks
from emsworker.app import Ems
from emsworker.core.errors import AlreadyExists, Problem, UnknownGroup, UnknownTopic
from emsworker.core.ids import check_name
from emsworker.core.model import Group, Topic, TopicKind
from emsworker.core.options import problems_of, raise_problems
from emsworker.core.priority import levels_of
from emsworker.core.settings import Setting, settings_of
from emsworker.publish.cancel import cancel_message
from emsworker.store import topics as store
from emsworker.store.engine.database import Database
from emsworker.store.groups import due_times
from emsworker.store.groups.cancel import Purged, StateAtCancel, list_stale_retries, purge
from emsworker.store.inspect import trace as trace_store

Progress = Callable[[int], None]


class Admin:
    """Administration of a stream.

    Args:
        stream: an app, or its database.

    Attributes:
        dead: the dead letters.
        schedules: the schedules of periodic tasks.
        tasks: tasks of groups: figures, and pauses of single ones.
        limits: rate and concurrency limits of groups.
        lists: pages of delayed, waiting and running messages.
        messages: read-only access to messages.
        backlogs: skipping of messages that a group would run too late.
        alarms: the alarm rules.
        readers: the positions of named readers of broadcast topics.
        refused: rows that were written by plain SQL and cannot be sent.
    """

    def __init__(self, stream: Ems | Database) -> None:
        self._database = stream.stream.database if isinstance(stream, Ems) else stream
        self.dead = DeadLetters(self._database, self.groups)
        self.schedules = Schedules(self._database, self.topic)
        self.tasks = Tasks(self._database, self.groups, self.group)
        self.limits = GroupLimits(self._database, self.group)
        self.lists = Lists(self._database, self.topics, self.topic, self.groups)
        self.backlogs = Backlogs(self._database, self.group)
        self.messages = Messages(self._database, self.topics, self.topic, self.group)
        self.alarms = Alarms(self._database)
        self.readers = Readers(self._database, self.topic)
        self.refused = Refused(self._database)

    # -- topics --------------------------------------------------------------------------------------------------------

    def topics(self, ids: Collection[int] | None = None) -> list[Topic]:
        """Return all topics, or those of some ids, sorted by name."""
        return self._database.call(lambda session: store.list_topics(session, ids))

    def topic(self, name: str) -> Topic:
        """Return the topic of that name.

        Raises:
            UnknownTopic: there is no topic of that name.
        """
        topic = self._database.call(lambda session: store.get_topic(session, name))
        if topic is None:
            raise UnknownTopic(f"there is no topic {name!r}; `ems topics list` shows those that exist")
        return topic

    def create_topic(self, name: str, **settings: Any) -> Topic:
        """Create a topic.

        Args:
            settings: those of topics in the reference of settings, by name, like ``retention_s=604800``.

        Raises:
            AlreadyExists: the topic exists already; nothing was changed.
            ConfigError: naming every setting that is wrong.
        """
        check_name("topic", name)
        wanted = _read("create_topic()", Topic, settings, lambda one: one.created)
        raise_problems(_topic_problems(Topic(0, name, **wanted)))
        if self._database.call(lambda session: store.get_topic(session, name)) is not None:
            raise AlreadyExists(f"topic {name!r} exists already; `ems topics change {name}` changes it")
        return self._database.call(lambda session: store.create_topic(session, name, **wanted))

    def change_topic(self, name: str, **changes: Any) -> Topic:
        """Change some settings of a topic.

        Args:
            changes: new values by name. ``partitions`` can only grow, because offsets never move; ``priorities`` must
                keep the existing levels, and 10 always does; ``kind`` cannot be changed.

        Raises:
            UnknownTopic: there is no topic of that name.
            ConfigError: naming every setting that is wrong.
        """
        wanted = _read("change_topic()", Topic, changes, lambda one: one.changed)
        before = self.topic(name)
        after = replace(before, **wanted)
        raise_problems(_topic_problems(after, before))
        self._database.call(lambda session: store.change_topic(session, after))
        return self.topic(name)

    def delete_topic(self, name: str, *, force: bool = False, progress: Progress = lambda rows: None) -> None:
        """Delete a topic with its groups and messages.

        Args:
            force: delete it even if one of its groups has live claims or retries.
            progress: called with the number of rows of each deleted chunk.

        Raises:
            UnknownTopic: there is no topic of that name.
            GroupInUse: a group is in use; nothing was deleted.
        """
        topic = self.topic(name)
        self._database.call(lambda session: store.delete_topic(session, topic, progress, force=force))

    def count_messages(self, topic: Topic) -> int:
        """Return the number of messages in a topic, tombstones included, computed from log start offsets and ends."""

        def work(session: Any) -> int:
            bounds = [trace_store.get_bounds(session, topic.id, number) for number in topic.partition_numbers()]
            return sum(end - log_start for log_start, end in filter(None, bounds))

        return self._database.call(work)

    def cancel(self, topic: str, message_id: str) -> StateAtCancel:
        """Cancel a message, and return what it was.

        Raises:
            UnknownTopic, UnknownMessage: there is no such topic or message.
            InvalidName: not a message id.
        """
        return cancel_message(self._database, [self.topic(topic)], message_id)

    def purge_topic(self, name: str, *, dry_run: bool = False, progress: Progress = lambda rows: None) -> Purged:
        """Cancel every message that a group of a topic has not finished; offsets and cursors stay.

        Args:
            dry_run: only count.
            progress: called with the number of rows of each chunk.

        Raises:
            UnknownTopic: there is no topic of that name.
        """
        topic = self.topic(name)
        ids = [group.id for _, group in self.groups(name)]
        return self._database.call(lambda session: purge(session, topic, ids, progress, dry_run=dry_run))

    def stale_retries(self, name: str, limit: int) -> list[dict[str, Any]]:
        """Return at most ``limit`` retries of a topic whose body is deleted; the next worker that takes one drops it.

        Raises:
            UnknownTopic: there is no topic of that name.
        """
        topic = self.topic(name)
        return self._database.call(lambda session: list_stale_retries(session, topic.id, limit))

    # -- groups --------------------------------------------------------------------------------------------------------

    def groups(self, topic: str | None = None, ids: Collection[int] | None = None) -> list[tuple[Topic, Group]]:
        """Return all groups, those of one topic, or those of some ids, sorted by name.

        Raises:
            UnknownTopic: there is no topic of that name.
        """
        where = None if topic is None else self.topic(topic)
        topic_id = None if where is None else where.id
        found = self._database.call(lambda session: store.list_groups(session, topic_id=topic_id, ids=ids))
        topics = [where] if where is not None else self.topics(None if ids is None else {one.topic_id for one in found})
        names = {one.id: one for one in topics}
        pairs = [(names[group.topic_id], group) for group in found if group.topic_id in names]
        return sorted(pairs, key=lambda pair: (pair[0].name, pair[1].name))

    def group(self, topic: str, name: str) -> Group:
        """Return the group of that name on a topic.

        Raises:
            UnknownTopic, UnknownGroup: there is no such topic or group.
            ConfigError: it is a broadcast topic, which has no groups.
        """
        place = self.topic(topic).check_kind(TopicKind.CLUSTER)
        group = self._database.call(lambda session: store.get_group(session, place, name))
        if group is None:
            raise UnknownGroup(f"topic {topic!r} has no group {name!r}; `ems groups list` shows those that exist")
        return group

    def create_group(self, topic: str, name: str, *, from_start: bool = True, **settings: Any) -> Group:
        """Create a group.

        Args:
            from_start: begin with the oldest message rather than with the next one.
            settings: those of groups in the reference of settings, by name, like ``ladder="10s 1m"``.

        Raises:
            AlreadyExists: the group exists already; nothing was changed.
            ConfigError: naming every setting that is wrong.
        """
        place = self.topic(topic).check_kind(TopicKind.CLUSTER)
        check_name("group", name)
        wanted = _read("create_group()", Group, settings, lambda one: one.created)
        if self._database.call(lambda session: store.get_group(session, place, name)) is not None:
            raise AlreadyExists(f"topic {topic!r} has a group {name!r} already; `ems groups change` changes it")
        return self._database.call(
            lambda session: store.create_group(session, place, name, from_start=from_start, **wanted)
        )

    def change_group(self, topic: str, name: str, **changes: Any) -> Group:
        """Change some settings of a group.

        Args:
            changes: new values by name; ``order`` cannot be changed. Pausing acts at once; running workers apply the
                others at their next start.

        Raises:
            UnknownTopic, UnknownGroup: there is no such topic or group.
            ConfigError: naming every setting that is wrong.
        """
        wanted = _read("change_group()", Group, changes, lambda one: one.changed)
        changed = replace(self.group(topic, name), **wanted)
        self._database.call(lambda session: store.change_group(session, changed))
        return self.group(topic, name)

    def reset_group(
        self, topic: str, name: str, to: str, *, partition: int | None = None, dry_run: bool = False
    ) -> list[Move]:
        """Move a group's cursor; no other group is affected, and its workers may go on meanwhile.

        A move forward skips messages and records that in ``ems_skip``. A move back delivers all messages from there on
        again; claims and retries after the new cursor are first taken away from their owners.

        Args:
            to: ``earliest``, ``latest``, an offset, ``-n`` for the last n messages, or a time in ISO 8601.
            partition: only this partition.
            dry_run: only return what would be done.

        Raises:
            UnknownTopic, UnknownGroup: there is no such topic or group.
            ConfigError: there is no such position.
        """
        group = self.group(topic, name)
        moves = cursors.plan(self._database, group, to, partition)
        return moves if dry_run else cursors.reset(self._database, group, moves)

    def retry_now(self, topic: str, name: str, places: Sequence[tuple[int, int]]) -> int:
        """Make waiting retries of a group due now; their attempts count as before.

        Args:
            places: partition and offset of each; those that run, are due, or wait for their key are left as they are.

        Returns:
            the number of retries that became due.

        Raises:
            UnknownTopic, UnknownGroup: there is no such topic or group.
        """
        group = self.group(topic, name)
        return self._database.call(lambda session: due_times.make_due(session, group, places))

    def replay(self, topic: str, name: str, selection: Selection, *, after: tuple[int, int] | None = None) -> Replay:
        """Prepare a replay of messages in one group: ``.plan()`` returns what would be done, ``.run()`` does it.

        Args:
            selection: the messages; those that the group's filter excludes are left out.
            after: begin after this place (partition, offset).

        Raises:
            UnknownTopic, UnknownGroup: there is no such topic or group.
            PredicateError, ConfigError, InvalidName: the selection is wrong.
        """
        return Replay(self._database, self.topic(topic), self.group(topic, name), selection, after)

    def delete_group(
        self, topic: str, name: str, *, force: bool = False, progress: Progress = lambda rows: None
    ) -> None:
        """Delete a group with its cursors, its claims, its retries and its dead letters.

        Raises:
            UnknownTopic, UnknownGroup: there is no such topic or group.
            GroupInUse: it has live claims or retries, and ``force`` was not given; nothing was deleted.
        """
        group = self.group(topic, name)
        self._database.call(lambda session: store.delete_group(session, group, progress, force=force))


def _read(
    call: str, owner: type[Topic | Group], given: Mapping[str, Any], allowed: Callable[[Setting], bool]
) -> dict[str, Any]:
    """Return settings that were given to a call, checked; a word of a choice as its enum.

    Raises:
        ConfigError: naming every one that is unknown or wrong.
    """
    known = {name: one for name, one in settings_of(owner).items() if allowed(one)}
    raise_problems(problems_of(call, given, known))
    return {name: known[name].check.read(value) if known[name].check.words else value for name, value in given.items()}


def _topic_problems(topic: Topic, before: Topic | None = None) -> list[Problem]:
    """Return the problems of settings that do not fit together, or not with those that the topic had before."""
    problems = []
    if before is not None and topic.partitions < before.partitions:
        fix = f"must be at least {before.partitions}; partitions are never taken away, because offsets do not move"
        problems.append(Problem("partitions", str(topic.partitions), fix))
    levels = levels_of(before.priorities if before is not None else 1)
    if not set(levels) <= set(levels_of(topic.priorities)):
        fix = f"would lose a level: messages may be in {', '.join(map(str, levels))}; 10 keeps all"
        problems.append(Problem("priorities", str(topic.priorities), fix))
    if topic.age_wins and topic.retention_s is None:
        problems.append(Problem("age_wins", "True", "needs a retention; set one"))
    return problems + _broadcast_problems(topic)


def _broadcast_problems(topic: Topic) -> list[Problem]:
    """Return the problems of settings that a broadcast topic cannot have."""
    if topic.kind is not TopicKind.BROADCAST:
        return []
    fix = "a broadcast topic has no groups; set a retention, which deletes messages by their age alone"
    problems = [Problem("age_wins", "True", fix)] if topic.age_wins else []
    if topic.keep_done_s is not None:
        problems.append(Problem("keep_done_s", f"{topic.keep_done_s:g}", fix))
    if topic.priorities > 1:
        problems.append(Problem("priorities", str(topic.priorities), "a broadcast topic has no priority levels; use 1"))
    return problems
