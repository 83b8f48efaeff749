"""Administration of dead letters, behind ``ems dead``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emsworker.core.codec import Decoder, decode_headers
from emsworker.core.errors import EmsError, InvalidName, UnknownGroup, UnknownMessage
from emsworker.core.ids import check_name, parse_uid, uid_text
from emsworker.core.model import Group, Topic
from emsworker.store.engine.database import Database
from emsworker.store.groups import dead as store
from emsworker.store.groups.dead import DeadRow, Place
from emsworker.store.inspect.trace import AttemptRow, list_attempts
from emsworker.store.stream.messages import find_uids

Progress = Callable[[int], None]


@dataclass(frozen=True)
class DeadLetter:
    """Dead letter with its message, error and attempts.

    Attributes:
        body: the decoded body, or ``None`` if it cannot be read.
        body_error: the reason why it cannot be read.
        attempts: every recorded attempt, including those before a requeue.
    """

    topic: Topic
    group: Group
    row: DeadRow
    headers: Mapping[str, str]
    raw: bytes
    body: Any
    body_error: str | None
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


class DeadLetters:
    """Dead letters of a stream.

    Args:
        database: the database of the stream.
        groups: lists the groups of a topic, or all.
    """

    def __init__(self, database: Database, groups: Callable[[str | None], Sequence[tuple[Topic, Group]]]) -> None:
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

    def show(self, ref: DeadRef) -> DeadLetter:
        """Return one dead letter with its body, headers, error and the history of its attempts.

        Raises:
            UnknownMessage: it is no longer dead.
        """

        def work(session: Any) -> tuple[Any, tuple[AttemptRow, ...]]:
            letter = store.get_dead(session, ref.group.id, ref.place)
            return letter, list_attempts(session, ref.group.id, ref.place)

        letter, attempts = self._database.call(work)
        if letter is None:
            raise UnknownMessage(f"offset {ref.place[1]} of partition {ref.place[0]} is no longer dead")
        row, kept = letter
        topic = next(topic for topic, group in self._groups(None) if group.id == ref.group.id)
        headers, body, body_error = _decode(kept.headers, kept.body)
        return DeadLetter(
            topic, ref.group, row, headers, kept.body, body, body_error, kept.error, kept.producer_id, attempts
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
        self, topic: str | None = None, group: str | None = None, progress: Progress = lambda rows: None
    ) -> int:
        """Requeue all dead letters of a group, a topic or the stream; those that fail again meanwhile stay dead."""
        return self._in_pages(topic, group, lambda refs: self.requeue(refs, progress))

    def delete(self, refs: Sequence[DeadRef], progress: Progress = lambda rows: None) -> int:
        """Delete dead letters permanently; return the number of deleted letters."""
        return self._by_group(refs, lambda s, group, places: store.delete_dead(s, group, places, progress))

    def delete_all(
        self, topic: str | None = None, group: str | None = None, progress: Progress = lambda rows: None
    ) -> int:
        """Delete all dead letters of a group, a topic or the stream permanently."""
        return self._in_pages(topic, group, lambda refs: self.delete(refs, progress))

    def _in_pages(self, topic: str | None, group: str | None, work: Callable[[list[DeadRef]], int]) -> int:
        count = 0
        for _, one in self._chosen(topic, group):
            after: Place = (0, -1)
            while rows := self._database.call(
                lambda s, g=one.id, a=after: store.list_dead(s, g, a, store.CHUNK)  # type: ignore[misc]
            ):
                count += work([DeadRef(one, row.place) for row in rows])
                after = rows[-1].place
        return count

    def _by_group(self, refs: Sequence[DeadRef], work: Callable[[Any, Group, list[Place]], int]) -> int:
        count = 0
        for group in {ref.group.id: ref.group for ref in refs}.values():
            places = [ref.place for ref in refs if ref.group.id == group.id]
            count += self._database.call(lambda s, g=group, p=places: work(s, g, p))  # type: ignore[misc]
        return count

    def _chosen(self, topic: str | None, group: str | None) -> list[tuple[Topic, Group]]:
        chosen = [pair for pair in self._groups(topic) if group is None or pair[1].name == group]
        if group is not None and not chosen:
            where = f"topic {topic!r} has no" if topic is not None else "there is no"
            raise UnknownGroup(f"{where} group {group!r}; `ems groups list` shows those that exist")
        return chosen


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


def _decode(raw_headers: bytes, raw: bytes) -> tuple[Mapping[str, str], Any, str | None]:
    try:
        headers = decode_headers(raw_headers)
        return headers, Decoder(("json", "msgpack", "yaml")).decode(raw, headers), None
    except EmsError as error:
        return {}, None, str(error)
