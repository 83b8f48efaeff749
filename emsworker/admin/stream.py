"""Administration of topics and groups, behind ``ems topics`` and ``ems groups``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import Any

from emsworker.admin import cursors
from emsworker.admin.alarms import Alarms
from emsworker.admin.backlogs import Backlogs
from emsworker.admin.cursors import Move
from emsworker.admin.dead import DeadLetters
from emsworker.admin.limits import GroupLimits
from emsworker.admin.messages import Messages
from emsworker.admin.readers import Readers, check_broadcast
from emsworker.admin.replay import Replay
from emsworker.admin.schedules import Schedules
from emsworker.admin.selection import Selection
from emsworker.app import Ems
from emsworker.core.durations import LONGEST_S
from emsworker.core.errors import (
    AlreadyExists,
    ConfigError,
    Problem,
    UnknownGroup,
    UnknownTopic,
)
from emsworker.core.ids import check_name
from emsworker.core.ladder import DEFAULT_LADDER, DEFAULT_MAX_ATTEMPTS, Ladder
from emsworker.core.model import Group, Order, Topic, TopicKind, TopicRule
from emsworker.core.options import refuse_wrong
from emsworker.core.partitioner import MAX_PARTITIONS
from emsworker.core.priority import PRIORITIES, levels_of
from emsworker.core.selection.filters import EVERYTHING, Filter
from emsworker.publish.cancel import cancel_message
from emsworker.store import topics as store
from emsworker.store.engine.database import Database
from emsworker.store.groups.cancel import Cancelled, Purged, list_stale_retries, purge
from emsworker.store.inspect import trace as trace_store

Progress = Callable[[int], None]

_MAX_MESSAGE_BYTES = 1 << 30  # the largest max_allowed_packet
_MAX_ATTEMPTS = 65535
_MAX_LADDER_CHARACTERS = 1000


class Admin:
    """Administration of a stream.

    Args:
        stream: an app, or its database.

    Attributes:
        dead: the dead letters.
        schedules: the schedules of periodic tasks.
        limits: rate and concurrency limits of groups.
        messages: read-only access to messages.
        backlogs: skipping of messages that a group would run too late.
        alarms: the alarm rules.
        readers: the positions of named readers of broadcast topics.
    """

    def __init__(self, stream: Ems | Database) -> None:
        self._database = stream.stream.database if isinstance(stream, Ems) else stream
        self.dead = DeadLetters(self._database, self.groups)
        self.schedules = Schedules(self._database)
        self.limits = GroupLimits(self._database, self.group)
        self.backlogs = Backlogs(self._database, self.group)
        self.messages = Messages(self._database, self.topics, self.topic, self.group)
        self.alarms = Alarms(self._database)
        self.readers = Readers(self._database, self.topic)

    # -- topics --------------------------------------------------------------------------------------------------------

    def topics(self) -> list[Topic]:
        """Return all topics, sorted by name."""
        return self._database.call(store.list_topics)

    def topic(self, name: str) -> Topic:
        """Return the topic of that name.

        Raises:
            UnknownTopic: there is no topic of that name.
        """
        topic = self._database.call(lambda session: store.get_topic(session, name))
        if topic is None:
            raise UnknownTopic(f"there is no topic {name!r}; `ems topics list` shows those that exist")
        return topic

    def create_topic(
        self,
        name: str,
        *,
        kind: str = TopicKind.CLUSTER,
        partitions: int = 1,
        rule: str = TopicRule.READ_WRITE,
        max_message_bytes: int = 4 << 20,
        retention_s: float | None = None,
        trim_done: bool = False,
        age_wins: bool = False,
        priorities: int = 1,
        archive_first: bool = False,
    ) -> Topic:
        """Create a topic.

        Args:
            kind: ``cluster``: each group gets every message once; ``broadcast``: every worker process gets all.
            partitions: the number of partitions of each priority level.
            retention_s: delete messages that are older, once every group has run them; ``None`` keeps them.
            trim_done: delete messages as soon as every group has run them.
            age_wins: delete messages older than ``retention_s`` even if a group has not claimed them.
            priorities: the number of priority levels, up to 10; 1 for none.
            archive_first: retention drops nothing itself; the job ``archive`` drops messages after it has copied them.

        Raises:
            AlreadyExists: the topic exists already; nothing was changed.
            ConfigError: naming every setting that is wrong.
        """
        check_name("topic", name)
        given = {"partitions": partitions, "rule": rule, "max_message_bytes": max_message_bytes, "trim_done": trim_done}
        given |= {"retention_s": retention_s, "age_wins": age_wins, "priorities": priorities}
        refuse_wrong("create_topic()", given | {"archive_first": archive_first, "kind": kind}, _NEW_TOPIC)
        _check_topic(partitions, max_message_bytes, retention_s)
        _check_priorities(priorities)
        _check_retention(retention_s, age_wins)
        check_broadcast(TopicKind(kind), trim_done, age_wins, priorities)
        if self._database.call(lambda session: store.get_topic(session, name)) is not None:
            raise AlreadyExists(f"topic {name!r} exists already; `ems topics change {name}` changes it")
        return self._database.call(
            lambda session: store.create_topic(
                session,
                name,
                kind=TopicKind(kind),
                partitions=partitions,
                rule=TopicRule(rule),
                max_message_bytes=max_message_bytes,
                retention_s=retention_s,
                trim_done=trim_done,
                age_wins=age_wins,
                priorities=priorities,
                archive_first=archive_first,
            )
        )

    def change_topic(self, name: str, **changes: Any) -> Topic:
        """Change some settings of a topic.

        Args:
            changes: ``partitions`` (can only grow: offsets never move), ``rule``, ``max_message_bytes``,
                ``retention_s`` (``None`` keeps messages for ever), ``trim_done``, ``age_wins``, ``archive_first``,
                ``priorities`` (must keep the existing levels; 10 always does).

        Raises:
            UnknownTopic: there is no topic of that name.
            ConfigError: naming every setting that is wrong.
        """
        refuse_wrong("change_topic()", changes, _TOPIC)
        topic = self.topic(name)
        if "rule" in changes:
            changes["rule"] = TopicRule(changes["rule"])
        changed = replace(topic, **changes)
        _check_topic(changed.partitions, changed.max_message_bytes, changed.retention_s, least=topic.partitions)
        _check_retention(changed.retention_s, changed.age_wins)
        check_broadcast(changed.kind, changed.trim_done, changed.age_wins, changed.priorities)
        _check_priorities(changed.priorities, topic.priorities)
        self._database.call(lambda session: store.change_topic(session, changed))
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

    def cancel(self, topic: str, message_id: str) -> Cancelled:
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

    def groups(self, topic: str | None = None) -> list[tuple[Topic, Group]]:
        """Return all groups, or those of one topic, sorted by name.

        Raises:
            UnknownTopic: there is no topic of that name.
        """
        topics = {one.id: one for one in ([self.topic(topic)] if topic is not None else self.topics())}
        found = [(topics[g.topic_id], g) for g in self._database.call(store.list_groups) if g.topic_id in topics]
        return sorted(found, key=lambda pair: (pair[0].name, pair[1].name))

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

    def create_group(
        self,
        topic: str,
        name: str,
        *,
        timeout_s: float = 60.0,
        ladder: str = DEFAULT_LADDER,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        filter: Filter = EVERYTHING,
        order: Order = Order.NONE,
        from_start: bool = True,
    ) -> Group:
        """Create a group.

        Args:
            timeout_s: the maximum run time of a message.
            ladder: delays between attempts, like ``"10s 1m 5m"``.
            max_attempts: the maximum number of runs of a message.
            filter: selects the messages that the group receives.
            order: the messages that run one after another; it cannot be changed later.
            from_start: begin with the oldest message rather than with the next one.

        Raises:
            AlreadyExists: the group exists already; nothing was changed.
            ConfigError: naming every setting that is wrong.
        """
        place = self.topic(topic).check_kind(TopicKind.CLUSTER)
        check_name("group", name)
        given = {"timeout_s": timeout_s, "ladder": ladder, "max_attempts": max_attempts, "order": order}
        refuse_wrong("create_group()", given, _NEW_GROUP)
        _check_filter(filter)
        _check_group(timeout_s, ladder, max_attempts)
        if self._database.call(lambda session: store.get_group(session, place, name)) is not None:
            raise AlreadyExists(f"topic {topic!r} has a group {name!r} already; `ems groups change` changes it")
        return self._database.call(
            lambda session: store.create_group(
                session,
                place,
                name,
                timeout_s=timeout_s,
                ladder=ladder,
                max_attempts=max_attempts,
                filter=filter,
                order=Order(order),
                from_start=from_start,
            )
        )

    def change_group(self, topic: str, name: str, **changes: Any) -> Group:
        """Change some settings of a group.

        Args:
            changes: ``timeout_s``, ``ladder``, ``max_attempts``, ``filter``, ``paused``. Pausing acts at once; running
                workers apply the others at their next start.

        Raises:
            UnknownTopic, UnknownGroup: there is no such topic or group.
            ConfigError: naming every setting that is wrong.
        """
        filters = {key: changes[key] for key in changes if key == "filter"}
        refuse_wrong("change_group()", {key: changes[key] for key in changes if key not in filters}, _GROUP)
        _check_filter(changes.get("filter", EVERYTHING))
        changed = replace(self.group(topic, name), **changes)
        _check_group(changed.timeout_s, changed.ladder, changed.max_attempts)
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


_TOPIC: dict[str, str | type[StrEnum]] = {
    "partitions": "a whole number", "rule": TopicRule, "max_message_bytes": "a whole number",
    "retention_s": "a number?", "trim_done": "True or False", "age_wins": "True or False",
    "priorities": "a whole number", "archive_first": "True or False",
}  # fmt: skip
_NEW_TOPIC = _TOPIC | {"kind": TopicKind}
_GROUP: dict[str, str | type[StrEnum]] = {
    "timeout_s": "a number", "ladder": "text", "max_attempts": "a whole number", "paused": "True or False"
}  # fmt: skip
_NEW_GROUP = {name: kind for name, kind in _GROUP.items() if name != "paused"} | {"order": Order}


def _check_filter(filter: Any) -> None:
    if not isinstance(filter, Filter):
        raise ConfigError([Problem("filter", repr(filter), "must be a Filter, like Filter(tags=['new'])")])


def _check_topic(partitions: int, max_message_bytes: int, retention_s: float | None, least: int = 1) -> None:
    problems = []
    if not least <= partitions <= MAX_PARTITIONS:
        fix = f"must lie between {least} and {MAX_PARTITIONS}"
        if least > 1 and partitions < least:
            fix += "; partitions are never taken away, because offsets do not move"
        problems.append(Problem("partitions", str(partitions), fix))
    if not 1 <= max_message_bytes <= _MAX_MESSAGE_BYTES:
        problems.append(
            Problem("max_message_bytes", str(max_message_bytes), f"must lie between 1 and {_MAX_MESSAGE_BYTES}")
        )
    if retention_s is not None and not 1 <= retention_s <= LONGEST_S:
        problems.append(Problem("retention_s", f"{retention_s:g}", "must lie between 1 second and 100 years"))
    if problems:
        raise ConfigError(problems)


def _check_retention(retention_s: float | None, age_wins: bool) -> None:
    if age_wins and retention_s is None:
        raise ConfigError([Problem("age_wins", "True", "needs a retention: say after what time age wins")])


def _check_priorities(priorities: int, before: int = 1) -> None:
    if not 1 <= priorities <= len(PRIORITIES):
        fix = f"must lie between 1 and {len(PRIORITIES)}"
        raise ConfigError([Problem("priorities", str(priorities), fix)])
    levels = levels_of(before)
    if not set(levels) <= set(levels_of(priorities)):
        fix = f"would lose a level: messages may be in {', '.join(map(str, levels))}; 10 keeps all"
        raise ConfigError([Problem("priorities", str(priorities), fix)])


def _check_group(timeout_s: float, ladder: str, max_attempts: int) -> None:
    problems = []
    if not 0.1 <= timeout_s <= LONGEST_S:
        problems.append(Problem("timeout_s", f"{timeout_s:g}", "must lie between 0.1 seconds and 100 years"))
    if not 1 <= max_attempts <= _MAX_ATTEMPTS:
        problems.append(Problem("max_attempts", str(max_attempts), f"must lie between 1 and {_MAX_ATTEMPTS}"))
    if len(ladder) > _MAX_LADDER_CHARACTERS:
        problems.append(
            Problem("ladder", f"{ladder[:20]}...", f"must have at most {_MAX_LADDER_CHARACTERS} characters")
        )
    try:
        Ladder.parse(ladder)
    except ValueError as error:
        problems.append(Problem("ladder", repr(ladder), str(error)))
    if problems:
        raise ConfigError(problems)
