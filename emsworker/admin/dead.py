"""Administration of dead letters, behind ``ems dead``."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from emsworker.admin.large import whole_body
from emsworker.admin.lists import Groups, choose
from emsworker.admin.paging import Listing, check_limit, decode_token, page_of
from emsworker.core.errors import InvalidName, UnknownMessage
from emsworker.core.ids import check_name, decode_key, parse_uid, uid_text
from emsworker.core.model import Group, Topic
from emsworker.core.preview import FullDecoder, PreviewDecoder
from emsworker.core.times import in_utc, utc
from emsworker.store.engine.database import Database
from emsworker.store.engine.session import Session
from emsworker.store.groups import dead as store
from emsworker.store.groups.dead import DeadRow, Place
from emsworker.store.inspect import lists
from emsworker.store.inspect.lists import (
    END_OF_TIME,
    START_OF_TIME,
    DeadEntryRow,
    DeadPlace,
    LetterClass,
    NamedCount,
    Within,
)
from emsworker.store.inspect.trace import AttemptRow, list_attempts
from emsworker.store.stream.messages import find_uids

Progress = Callable[[int], None]
_MANY_GROUPS = 200  # of more, all letters are counted by one statement
_TOGETHER = 10  # times the most of one class; a page costs no more if it shows many
_CLASSES = 10_000  # of one group; more come only from messages with invented tasks


@dataclass(frozen=True)
class DeadLetter:
    """Dead letter with its message, error and attempts.

    Attributes:
        raw: the encoded body, or as much of it as was requested; ``size`` are all its bytes.
        body: the decoded body, or ``None`` if it is not decoded.
        body_error: the reason why it is not decoded.
        body_text: the beginning of a body that is not decoded, as text.
        attempts: every recorded attempt, including those before a requeue.
    """

    topic: Topic
    group: Group
    row: DeadRow
    headers: Mapping[str, str]
    raw: bytes
    size: int
    body: Any
    body_error: str | None
    body_text: str | None
    error: str
    producer_id: str
    attempts: tuple[AttemptRow, ...]

    @property
    def id(self) -> str:
        """The message's id."""
        return uid_text(self.row.uid)


@dataclass(frozen=True)
class DeadRef:
    """Reference to a dead letter: a message in one group."""

    group: Group
    place: Place


@dataclass(frozen=True)
class DeadFilter:
    """Selection of dead letters: all given conditions must hold.

    Attributes:
        task: the name of the task; empty for messages without one.
        error: the name of the error's class: as in a traceback, like ``ValueError`` or ``requests.exceptions.Timeout``.
        since, until: the time at which they died; without a zone it is in UTC.
    """

    topic: str | None = None
    group: str | None = None
    task: str | None = None
    error: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def within(self) -> Within:
        """The span of time as the server writes it."""
        return Within(_server_time(self.since) or START_OF_TIME, _server_time(self.until) or END_OF_TIME)

    @property
    def of_all_groups(self) -> bool:
        """True if it names no topic and no group."""
        return self.topic is None and self.group is None


@dataclass(frozen=True)
class DeadEntry:
    """Dead letter in a list, without its body.

    Attributes:
        task: the name of its task, empty if it has none; error_type: the class of its last error.
        reason, error: the reason and the end of the error; ``None`` if they were not read.
        ref: what requeues, deletes or shows it.
    """

    topic: str
    group: str
    partition: int
    offset: int
    id: str
    task: str
    error_type: str
    key: str | bytes | None
    tag: str | bytes | None
    born_at: datetime
    dead_at: datetime
    attempts: int
    reason: str | None
    error: str | None
    ref: DeadRef


@dataclass(frozen=True)
class DeadClass:
    """Dead letters of one group that have one task and one class of error.

    Attributes:
        count: how many; ``capped``: there may be more.
        latest: the time of the newest one.
    """

    topic: str
    group: str
    task: str
    error_type: str
    count: int
    capped: bool
    latest: datetime


class DeadLetters:
    """Dead letters of a stream.

    Args:
        database: the database of the stream.
        groups: lists the groups of a topic, or all.
    """

    def __init__(self, database: Database, groups: Groups) -> None:
        self._database = database
        self._groups = groups

    def iterate(self, topic: str | None = None, group: str | None = None, *, page: int = 500) -> Iterator[DeadRow]:
        """Yield the dead letters of one group, of a topic's groups or of all, read in pages.

        Raises:
            UnknownTopic, UnknownGroup: there is no topic or group of that name.
        """
        for _, one in self._chosen(topic, group):
            after: Place = (0, -1)
            while rows := self._database.call(lambda s, g=one.id, a=after: store.list_dead(s, g, a, page)):  # type: ignore[misc]
                yield from rows
                after = rows[-1].place

    def page(
        self,
        only: DeadFilter = DeadFilter(),
        *,
        after: str | None = None,
        limit: int = 50,
        details: bool = False,
    ) -> Listing[DeadEntry]:
        """Return a page of dead letters, the newest first; no page costs more than the first.

        Args:
            after: the last page's ``after``.
            limit: the maximum number of rows.
            details: read the reasons and the ends of the errors too, which the role `viewer` may not.

        Raises:
            UnknownTopic, UnknownGroup: there is no such topic or group.
            ConfigError: ``after`` or ``limit`` is wrong.
        """
        check_limit(limit)
        token = decode_token(after, datetime, int, int, int)
        place = DeadPlace(*token) if token else None
        before = replace(only.within, until=place.dead_at) if place else only.within
        chosen, sources = self._sources(only, before, limit + 1)

        def work(session: Session) -> list[DeadEntryRow]:
            return lists.list_dead(session, sources, only.within, place, limit + 1, details)

        def shown(row: DeadEntryRow) -> DeadEntry:
            where, group = chosen[row.group_id]
            return DeadEntry(
                *(where.name, group.name, row.partition, row.offset, uid_text(row.uid), row.task, row.error_type),
                *(decode_key(row.key), decode_key(row.tag), utc(row.born_at), utc(row.dead_at), row.attempts),
                *(row.reason, row.error, DeadRef(group, (row.partition, row.offset))),
            )

        rows = self._database.call(work)
        return page_of(rows, limit, lambda row: (row.dead_at, row.group_id, row.partition, row.offset), shown)

    def classes(
        self,
        only: DeadFilter = DeadFilter(),
        *,
        most: int = 100_000,
        limit: int = 200,
        newest: int | None = None,
    ) -> tuple[DeadClass, ...]:
        """Count dead letters by topic, group, task and class of error, the largest count first.

        Args:
            most: counting a class stops there, unless there are several hundred groups.
            limit: the maximum number of classes of each group, unless there are several hundred.
            newest: of all groups, only this number of classes, those with the newest letters; counting more than ten
                stops the sooner.

        Raises:
            UnknownTopic, UnknownGroup: there is no such topic or group.
        """
        check_limit(limit)
        if newest is not None and only.of_all_groups:
            found = self._newest_classes(only, only.within, newest)
            most = max(1, min(most, _TOGETHER * most // max(1, len(found))))
            return self._counted(self._by_id(self._groups(ids={one.group_id for one in found})), found, only, most)
        if only.of_all_groups and len(ids := self._database.call(lists.dead_groups)) > _MANY_GROUPS:
            return self._counted_of_many(ids, only)  # a statement for each group and class would take seconds
        chosen = self._by_id(self._chosen(only.topic, only.group))
        if len(chosen) > _MANY_GROUPS:
            return self._counted_of_many(chosen, only)
        classes = self._database.call(lambda session: lists.list_classes(session, sorted(chosen), limit))
        return self._counted(chosen, [one for one in classes if _is_wanted(one, only)], only, most)

    def _counted(
        self,
        groups: Mapping[int, tuple[Topic, Group]],
        classes: Sequence[LetterClass],
        only: DeadFilter,
        most: int,
    ) -> tuple[DeadClass, ...]:
        counts = self._database.call(lambda session: lists.count_classes(session, classes, only.within, most))
        return _ranked(
            DeadClass(
                *(groups[one.group_id][0].name, groups[one.group_id][1].name, one.task, one.error_type),
                *(count, count >= most, utc(latest)),
            )
            for one, (count, latest) in zip(classes, counts, strict=True)
            if latest is not None and one.group_id in groups
        )

    def _counted_of_many(self, group_ids: Collection[int], only: DeadFilter) -> tuple[DeadClass, ...]:
        rows = self._database.call(lambda session: lists.count_classes_of_many(session, group_ids, only.within))
        return _ranked(
            DeadClass(*row[:4], int(row.letters), False, utc(row.latest)) for row in rows if _is_wanted(row, only)
        )

    def count(self, topic: str | None = None, group: str | None = None) -> int:
        """Return the number of dead letters."""
        return sum(
            self._database.call(lambda s, g=one.id: store.count_dead(s, g))  # type: ignore[misc]
            for _, one in self._chosen(topic, group)
        )

    def find(self, what: str, topic: str | None = None, group: str | None = None) -> list[DeadRef]:
        """Find the dead letters of one message, one for each group in which it is dead.

        Args:
            what: a message id, or ``topic/partition/offset``.
            topic, group: search only there.

        Raises:
            InvalidName: ``what`` is neither.
            UnknownMessage: it has no dead letter.
        """
        place = None if "/" not in str(what) else parse_place(what)
        chosen = {one.id: one for _, one in self._chosen(place[0] if place else topic, group)}
        if place is not None:
            at = place[1:]
            found = self._database.call(lambda s: store.find_dead_at(s, list(chosen), at))
        else:
            uid = parse_uid(what)
            found = self._database.call(lambda s: self._find(s, list(chosen.values()), uid))
        if not found:
            raise UnknownMessage(f"there is no dead letter of {what}; `ems dead list` shows those that exist")
        return [DeadRef(chosen[group_id], place) for group_id, place in found]

    def _find(self, session: Any, groups: Sequence[Group], uid: bytes) -> list[tuple[int, Place]]:
        """Search by the stream's index of ids; if retention has deleted the message, in the dead letters themselves."""
        found = []
        for topic_id in sorted({group.topic_id for group in groups}):
            group_ids = [group.id for group in groups if group.topic_id == topic_id]
            place = find_uids(session, topic_id, [uid]).get(uid)
            if place is not None:
                found += store.find_dead_at(session, group_ids, place)
            else:
                found += store.find_dead(session, group_ids, uid)
        return found

    def show(self, ref: DeadRef, *, whole: bool = True) -> DeadLetter:
        """Return one dead letter with its body, headers, error and the history of its attempts.

        Args:
            whole: see :meth:`Messages.get`.

        Raises:
            UnknownMessage: it is no longer dead.
        """
        decoder = PreviewDecoder()
        body_bytes = FullDecoder.body_bytes if whole else decoder.body_bytes

        def work(session: Any) -> tuple[Any, tuple[AttemptRow, ...]]:
            letter = store.get_dead(session, ref.group.id, ref.place, decoder.header_bytes, body_bytes)
            return letter, list_attempts(session, ref.group.id, ref.place)

        letter, attempts = self._database.call(work)
        if letter is None:
            raise UnknownMessage(f"offset {ref.place[1]} of partition {ref.place[0]} is no longer dead")
        row, kept = letter
        topic = self._groups(ids=[ref.group.id])[0][0]
        view = decoder.preview(kept.headers, kept.body)
        raw = whole_body(self._database, view.headers, kept.body) if whole else kept.body
        return DeadLetter(
            topic,
            ref.group,
            row,
            view.headers,
            raw,
            kept.size,
            view.body,
            view.problem,
            view.text,
            kept.error,
            kept.producer_id,
            attempts,
        )

    def requeue(self, refs: Sequence[DeadRef], progress: Progress = lambda rows: None) -> int:
        """Run dead letters again, each with a fresh ladder and at once.

        Args:
            progress: called with the size of each chunk; a chunk is one transaction.

        Returns:
            the number of moved letters; one that is no longer dead does not count.
        """
        return self._by_group(refs, lambda s, group, places: store.requeue(s, group, places, progress))

    def requeue_all(
        self,
        topic: str | None = None,
        group: str | None = None,
        progress: Progress = lambda rows: None,
        *,
        only: DeadFilter | None = None,
    ) -> int:
        """Requeue all dead letters of a group, a topic or the stream; those that fail again meanwhile stay dead.

        Args:
            only: the selection, instead of ``topic`` and ``group``.

        Raises:
            UnknownTopic, UnknownGroup: there is no such topic or group.
        """
        only = DeadFilter(topic, group) if only is None else only
        return self._in_pages(only, lambda refs: self.requeue(refs, progress))

    def delete(self, refs: Sequence[DeadRef], progress: Progress = lambda rows: None) -> int:
        """Delete dead letters permanently; return the number of deleted letters."""
        return self._by_group(refs, lambda s, group, places: store.delete_dead(s, group, places, progress))

    def delete_all(
        self,
        topic: str | None = None,
        group: str | None = None,
        progress: Progress = lambda rows: None,
        *,
        only: DeadFilter | None = None,
    ) -> int:
        """Delete all dead letters of a group, a topic or the stream permanently.

        Args:
            only: the selection, instead of ``topic`` and ``group``.

        Raises:
            UnknownTopic, UnknownGroup: there is no such topic or group.
        """
        only = DeadFilter(topic, group) if only is None else only
        return self._in_pages(only, lambda refs: self.delete(refs, progress))

    def _in_pages(self, only: DeadFilter, work: Callable[[list[DeadRef]], int]) -> int:
        """Work on everything selected, newest first: what dies again meanwhile is newer than the next page."""
        count, after = 0, None
        while True:
            page = self.page(only, after=after, limit=store.CHUNK)
            count += work([entry.ref for entry in page.rows])
            if (after := page.after) is None:
                return count

    def _by_group(self, refs: Sequence[DeadRef], work: Callable[[Any, Group, list[Place]], int]) -> int:
        count = 0
        for group in {ref.group.id: ref.group for ref in refs}.values():
            places = [ref.place for ref in refs if ref.group.id == group.id]
            count += self._database.call(lambda s, g=group, p=places: work(s, g, p))  # type: ignore[misc]
        return count

    def _sources(
        self, only: DeadFilter, within: Within, most: int
    ) -> tuple[dict[int, tuple[Topic, Group]], Sequence[int] | Sequence[LetterClass]]:
        """Return the groups of a page of ``most`` letters, and what it reads: whole groups, or classes of them."""
        by_class = only.task is not None or only.error is not None
        if not only.of_all_groups:
            chosen = self._by_id(self._chosen(only.topic, only.group))
            ids = sorted(chosen)
            return chosen, self._database.call(lambda session: _classes(session, ids, only)) if by_class else ids
        # Without this choice, each group that has dead letters would cost a statement, and there may be 20,000.
        if by_class:
            classes = self._newest_classes(only, within, most)
            chosen = self._by_id(self._groups(ids={one.group_id for one in classes}))
            return chosen, [one for one in classes if one.group_id in chosen]
        newest = self._database.call(lambda session: lists.newest_groups(session, within, most))
        chosen = self._by_id(self._groups(ids=set(newest)))
        return chosen, [one for one in newest if one in chosen]

    def _newest_classes(self, only: DeadFilter, within: Within, most: int) -> list[LetterClass]:
        return self._database.call(
            lambda session: lists.newest_classes(session, within, most, lambda one: _is_wanted(one, only))
        )

    @staticmethod
    def _by_id(groups: Sequence[tuple[Topic, Group]]) -> dict[int, tuple[Topic, Group]]:
        return {one.id: (where, one) for where, one in groups}

    def _chosen(self, topic: str | None, group: str | None) -> Sequence[tuple[Topic, Group]]:
        return choose(self._groups, topic, group, lambda: self._database.call(lists.dead_groups))


def parse_place(text: str) -> tuple[str, int, int]:
    """Parse ``topic/partition/offset``, or ``topic/partition@offset`` as in log lines.

    Raises:
        InvalidName: neither of these.
    """
    topic, _, rest = text.partition("/")
    partition, _, offset = rest.replace("@", "/", 1).partition("/")
    if not (re.fullmatch(r"\d{1,5}", partition) and re.fullmatch(r"\d{1,20}", offset)):
        raise InvalidName(f"{text!r} is not the place of a message; write topic/partition/offset, like orders/0/4711")
    return check_name("topic", topic), int(partition), int(offset)


def _server_time(when: datetime | None) -> str | None:
    """Return a time as the server writes it; a time without a zone is in UTC."""
    return None if when is None else in_utc(when).replace(tzinfo=None).isoformat(" ", "microseconds")


def _ranked(classes: Iterable[DeadClass]) -> tuple[DeadClass, ...]:
    return tuple(sorted(classes, key=lambda one: (-one.count, one.topic, one.group, one.task, one.error_type)))


def _is_wanted(one: LetterClass | NamedCount, only: DeadFilter) -> bool:
    return only.task in (None, one.task) and only.error in (None, one.error_type)


def _classes(session: Session, group_ids: Sequence[int], only: DeadFilter) -> list[LetterClass]:
    """Return the classes of some groups that a selection by task or error has."""
    if only.task is not None and only.error is not None:
        return [LetterClass(group_id, only.task, only.error) for group_id in group_ids]
    return [one for one in lists.list_classes(session, group_ids, _CLASSES) if _is_wanted(one, only)]
