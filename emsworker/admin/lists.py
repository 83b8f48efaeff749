"""Pages of lists: delayed messages, waiting retries, running messages, and rows of a topic."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from emsworker.admin.paging import Listing, check_limit, decode_token, page_of
from emsworker.core.errors import ConfigError, DecodeError, Problem, UnknownGroup
from emsworker.core.ids import decode_key, uid_text
from emsworker.core.model import TASK_HEADER, Group, Topic
from emsworker.core.preview import PreviewDecoder
from emsworker.core.run import Progress
from emsworker.core.times import utc
from emsworker.store.engine.database import Database
from emsworker.store.engine.session import Session
from emsworker.store.groups.blocking import waits_for_others
from emsworker.store.inspect import lists as store
from emsworker.store.inspect.lists import DelayedPlace, DelayedRow, Outline, RetryPlace, RunningPlace, RunningRow


class Groups(Protocol):
    """Lists the groups of a topic, or all, or only those of some ids."""

    def __call__(self, topic: str | None = None, ids: Collection[int] | None = None) -> Sequence[tuple[Topic, Group]]:
        """Return the groups with their topics."""


@dataclass(frozen=True)
class Delayed:
    """Delayed message, which the relay moves into the stream when it is due.

    Attributes:
        partition: the partition that its sender chose, or ``None``.
        level: the lowest partition number of its priority level.
        task: the name of its task, ``None`` if it has none or if the headers were not read.
    """

    topic: str
    id: str
    due_at: datetime
    created_at: datetime
    partition: int | None
    key: str | bytes | None
    tag: str | bytes | None
    level: int
    producer: str
    task: str | None


@dataclass(frozen=True)
class WaitingRetry:
    """Message that waits for its next attempt in one group.

    Attributes:
        id, born_at: ``None`` if the message has been deleted.
        attempt: the number of its last attempt; 0 if it was requeued or is blocked.
        due_at: ``None`` if it is blocked by an earlier message of its key, or by other keys of a fair group.
        task, error: its task and the end of its last error; ``None`` if they were not read.
    """

    topic: str
    group: str
    partition: int
    offset: int
    id: str | None
    attempt: int
    due_at: datetime | None
    key: str | bytes | None
    born_at: datetime | None
    task: str | None
    error: str | None


@dataclass(frozen=True)
class Running:
    """Live claim with the message that its client runs.

    A client acks while it runs, every 100 ms; so the message is the first unfinished one as of the last ack.

    Attributes:
        offset, id: the message; ``None`` if it has just ended.
        source: ``stream``, or ``retry`` for a claim of retries.
        client: the name of the client's worker, ``None`` if its lease is gone.
        since: the time of the last ack, about when the message began.
        deadline_at: the time after which it counts as stuck.
        left: the unfinished messages of the claim, this one included.
        progress: the last report of its handler, if it made one.
    """

    topic: str
    group: str
    partition: int
    offset: int | None
    id: str | None
    source: str
    client_id: str
    client: str | None
    claimed_at: datetime
    since: datetime
    deadline_at: datetime
    left: int
    progress: Progress | None


@dataclass(frozen=True)
class MessageOutline:
    """Row of a topic without its headers and its body.

    Attributes:
        id: ``None`` for a tombstone.
        kind: ``message``, ``tombstone`` or ``cancelled``.
    """

    topic: str
    partition: int
    offset: int
    id: str | None
    key: str | bytes | None
    tag: str | bytes | None
    size: int
    born_at: datetime
    producer: str
    kind: str


def delayed_of(row: DelayedRow, topic: str) -> Delayed:
    """Return a row of the outbox as it is shown."""
    return Delayed(
        topic=topic,
        id=uid_text(row.uid),
        due_at=utc(row.due_at),
        created_at=utc(row.created_at),
        partition=row.partition,
        key=decode_key(row.key),
        tag=decode_key(row.tag),
        level=int(row.level),
        producer=row.producer_id,
        task=_task_of(row.headers),
    )


class Lists:
    """Lists of messages by their state, in pages; no page costs more than the first.

    Without ``details`` they read no body, no header and no error, which suits the role `viewer`.

    Args:
        database: the database of the stream.
        topics: lists all topics, or those of some ids.
        topic_of: finds a topic by its name.
        groups: lists the groups of a topic, or all.
    """

    def __init__(
        self,
        database: Database,
        topics: Callable[[Collection[int]], list[Topic]],
        topic_of: Callable[[str], Topic],
        groups: Groups,
    ) -> None:
        self._database, self._topics, self._topic_of, self._groups = database, topics, topic_of, groups

    def delayed(
        self, topic: str | None = None, *, after: str | None = None, limit: int = 50, details: bool = False
    ) -> Listing[Delayed]:
        """Return delayed messages of a topic or of all, the next due first.

        Args:
            after: the last page's ``after``.
            limit: the maximum number of rows.
            details: read the tasks too.

        Raises:
            UnknownTopic: there is no topic of that name.
            ConfigError: ``after`` or ``limit`` is wrong.
        """
        check_limit(limit)
        token = decode_token(after, datetime, int, bytes)
        place = DelayedPlace(*token) if token else None
        where = self._topics(self._database.call(store.delayed_topics)) if topic is None else [self._topic_of(topic)]
        names = {one.id: one.name for one in where}
        rows = self._database.call(lambda s: store.list_delayed(s, list(names), place, limit + 1, details))
        return page_of(
            rows,
            limit,
            lambda row: (row.due_at, row.topic_id, row.uid.hex()),
            lambda row: delayed_of(row, names[row.topic_id]),
        )

    def retries(
        self,
        topic: str | None = None,
        group: str | None = None,
        *,
        after: str | None = None,
        limit: int = 50,
        details: bool = False,
    ) -> Listing[WaitingRetry]:
        """Return messages that wait for their next attempt, the next due first and blocked ones last.

        Args:
            after: the last page's ``after``.
            limit: the maximum number of rows.
            details: read the tasks and the last errors too.

        Raises:
            UnknownTopic, UnknownGroup: there is no such topic or group.
            ConfigError: ``after`` or ``limit`` is wrong.
        """
        check_limit(limit)
        token = decode_token(after, datetime, int, int, int)
        place = RetryPlace(*token) if token else None
        chosen = {one.id: (where, one) for where, one in self._chosen(topic, group, store.retrying_groups)}

        def work(session: Session) -> list[tuple[store.WaitingRow, Outline | None]]:
            rows = store.list_retries(session, list(chosen), place, limit + 1, details)
            at = [(chosen[row.group_id][0].id, row.partition, row.offset) for row in rows]
            return list(zip(rows, store.get_outlines(session, at, details), strict=True))

        def shown(one: tuple[store.WaitingRow, Outline | None]) -> WaitingRetry:
            row, message = one
            where, its = chosen[row.group_id]
            return WaitingRetry(
                topic=where.name,
                group=its.name,
                partition=row.partition,
                offset=row.offset,
                id=uid_text(message.uid) if message else None,
                attempt=row.attempt,
                due_at=None if waits_for_others(row.due_at) else utc(row.due_at),
                key=decode_key(row.key),
                born_at=utc(message.born_at) if message else None,
                task=_task_of(message.headers if message else None),
                error=row.last_error,
            )

        found = self._database.call(work)
        return page_of(
            found, limit, lambda one: (one[0].due_at, one[0].group_id, one[0].partition, one[0].offset), shown
        )

    def running(
        self, topic: str | None = None, group: str | None = None, *, after: str | None = None, limit: int = 50
    ) -> Listing[Running]:
        """Return what runs now: each live claim with its message, by group, partition and offset.

        Args:
            after: the last page's ``after``.
            limit: the maximum number of rows.

        Raises:
            UnknownTopic, UnknownGroup: there is no such topic or group.
            ConfigError: ``after`` or ``limit`` is wrong.
        """
        check_limit(limit)
        token = decode_token(after, int, int, int, int)
        place = RunningPlace(*token) if token else None
        chosen = {one.id: (where, one) for where, one in self._chosen(topic, group, store.running_groups)}

        def work(session: Session) -> list[tuple[RunningRow, tuple[int, bytes, Progress | None] | None]]:
            rows = store.list_running(session, sorted(chosen), place, limit + 1)
            found = store.get_running(session, [(chosen[row.group_id][0].id, row) for row in rows])
            return list(zip(rows, found, strict=True))

        def shown(one: tuple[RunningRow, tuple[int, bytes, Progress | None] | None]) -> Running:
            row, message = one
            where, its = chosen[row.group_id]
            offset, uid, progress = message if message is not None else (row.offset, None, None)
            return Running(
                topic=where.name,
                group=its.name,
                partition=row.partition,
                offset=offset,
                id=uid_text(uid) if uid is not None else None,
                source=row.source,
                client_id=row.client_id,
                client=row.client,
                claimed_at=utc(row.claimed_at),
                since=utc(row.progress_at),
                deadline_at=utc(row.deadline_at),
                left=int(row.left),
                progress=progress,
            )

        return page_of(self._database.call(work), limit, lambda one: tuple(one[0][:4]), shown)

    def _chosen(
        self, topic: str | None, group: str | None, having: Callable[[Session], set[int]]
    ) -> Sequence[tuple[Topic, Group]]:
        return choose(self._groups, topic, group, lambda: self._database.call(having))

    def messages(
        self,
        topic: str,
        partition: int | None = None,
        *,
        after: str | None = None,
        limit: int = 50,
        newest: bool = True,
    ) -> Listing[MessageOutline]:
        """Return the rows of a topic, tombstones included, without headers and bodies.

        Args:
            partition: only this one.
            after: the last page's ``after``.
            limit: the maximum number of rows.
            newest: from the end of the last partition to the beginning of the first.

        Raises:
            UnknownTopic: there is no topic of that name.
            ConfigError: ``after``, ``limit`` or ``partition`` is wrong.
        """
        check_limit(limit)
        token = decode_token(after, int, int)
        where = self._topic_of(topic)
        numbers = where.partition_numbers()
        if partition is not None and partition not in numbers:
            fix = f"topic {topic!r} has the partitions {', '.join(map(str, numbers[:20]))}"
            raise ConfigError([Problem("partition", str(partition), fix)])
        chosen = numbers if partition is None else [partition]
        place = (token[0], token[1]) if token else None
        rows = self._database.call(lambda s: store.list_messages(s, where.id, chosen, place, limit + 1, newest))

        def shown(row: store.OutlineRow) -> MessageOutline:
            return MessageOutline(
                topic=topic,
                partition=row.partition,
                offset=row.offset,
                id=uid_text(row.uid) if row.uid is not None else None,
                key=decode_key(row.key),
                tag=decode_key(row.tag),
                size=row.size,
                born_at=utc(row.born_at),
                producer=row.producer_id,
                kind=row.kind,
            )

        return page_of(rows, limit, lambda row: (row.partition, row.offset), shown)


def choose(
    groups: Groups, topic: str | None, group: str | None, having: Callable[[], Collection[int]]
) -> Sequence[tuple[Topic, Group]]:
    """Return the groups of a topic, or of all topics, that have a name; without both, those that have anything.

    Args:
        having: returns the ids of the groups that have what is to be listed; of many groups few have.

    Raises:
        UnknownTopic, UnknownGroup: there is no such topic or group.
    """
    if topic is None and group is None:
        return groups(ids=having())
    chosen = [pair for pair in groups(topic) if group is None or pair[1].name == group]
    if group is not None and not chosen:
        where = f"topic {topic!r} has no" if topic is not None else "there is no"
        raise UnknownGroup(f"{where} group {group!r}; `ems groups list` shows those that exist")
    return chosen


def _task_of(headers: bytes | None) -> str | None:
    try:
        return PreviewDecoder().headers(headers).get(TASK_HEADER) if headers is not None else None
    except DecodeError:
        return None
