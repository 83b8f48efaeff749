"""Read-only access to messages: list, peek and get, behind ``ems messages``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from math import inf
from types import MappingProxyType
from typing import Any

from emsworker.admin.dead import parse_place
from emsworker.admin.selection import Choice, Place, Selection, in_steps
from emsworker.core.batches import in_batches
from emsworker.core.codec import Decoder, decode_headers
from emsworker.core.errors import EmsError, UnknownMessage
from emsworker.core.ids import decode_key, parse_uid, uid_text
from emsworker.core.model import Group, Topic
from emsworker.core.offsets import OffsetRange
from emsworker.core.options import refuse, whole
from emsworker.core.process.clock import ticks
from emsworker.core.process.forks import lazy
from emsworker.core.selection.filters import EVERYTHING, Filter
from emsworker.core.selection.predicate import Predicate
from emsworker.store.engine.database import Database
from emsworker.store.engine.session import Session
from emsworker.store.groups import cursors as cursor_store
from emsworker.store.inspect import trace as trace_store
from emsworker.store.inspect.lists import delayed_topics
from emsworker.store.stream import search
from emsworker.store.stream.messages import find_uids
from emsworker.store.stream.search import Found
from emsworker.store.topics import list_topics

STEP = 1000
SCAN = 100_000
_BODIES_BYTES = 4 << 20
_COUNT = whole(1, (1 << 63) - 1)
_DECODER = Decoder(("json", "msgpack", "yaml"))


class StoredMessage:
    """Message as stored in the stream.

    Attributes:
        topic, partition, offset: its place.
        key_bytes, tag_bytes: the stored bytes, or ``None``; ``key`` and ``tag`` give them as text.
        size: the size of the encoded body, in bytes.
        born_at: the time when it was written, in UTC.
        producer: the id of its sender.
        raw: the encoded body, or ``None`` if it was not requested.
    """

    def __init__(self, topic: str, found: Found, raw: bytes | None = None) -> None:
        self.topic, self.raw = topic, raw
        self.partition, self.offset, self.uid = found.partition, found.offset, found.uid
        self.key_bytes, self.tag_bytes, self.size = found.key, found.tag, found.size
        self.born_at: datetime = found.born_at
        self.producer = found.producer
        self._raw_headers = found.raw_headers

    @property
    def id(self) -> str:
        """The message's id."""
        return uid_text(self.uid)

    @property
    def key(self) -> str | bytes | None:
        """The key: text, or bytes if it is not UTF-8."""
        return decode_key(self.key_bytes)

    @property
    def tag(self) -> str | bytes | None:
        """The tag: text, or bytes if it is not UTF-8."""
        return decode_key(self.tag_bytes)

    @property
    def place(self) -> Place:
        """Partition and offset of the message."""
        return self.partition, self.offset

    @lazy
    def _read(self) -> tuple[Mapping[str, str], Any, str | None]:
        headers: Mapping[str, str] = MappingProxyType({})
        try:
            headers = decode_headers(self._raw_headers)
            return headers, None if self.raw is None else _DECODER.decode(self.raw, headers), None
        except EmsError as error:
            return headers, None, str(error)

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, including those of EMS; empty if they are damaged."""
        return self._read[0]

    @property
    def body(self) -> Any:
        """The decoded body; ``None`` if it cannot be read (see ``problem``) or was not requested."""
        return self._read[1]

    @property
    def problem(self) -> str | None:
        """Reason why the body or the headers cannot be read; ``None`` if they can."""
        return self._read[2]

    def __repr__(self) -> str:
        return f"<StoredMessage {self.topic}/{self.partition}/{self.offset} {self.id}>"


@dataclass(frozen=True)
class Page:
    """Page of search results.

    Attributes:
        looked_at: the number of offsets that were examined.
        unreadable: the number of messages that the predicate could not judge, because their bodies cannot be read.
        after: the place after which the next page begins, ``None`` if there is nothing more.
    """

    messages: tuple[StoredMessage, ...]
    looked_at: int
    unreadable: int
    after: Place | None


class Messages:
    """Messages of a stream.

    Args:
        database: the database of the stream.
        topic_of: finds a topic by its name.
        group_of: finds a group of a topic.
    """

    def __init__(
        self,
        database: Database,
        topics: Callable[[Collection[int]], list[Topic]],
        topic_of: Callable[[str], Topic],
        group_of: Callable[[str, str], Group],
    ) -> None:
        self._database, self._topics, self._topic_of, self._group_of = database, topics, topic_of, group_of

    def list(
        self,
        topic: str,
        selection: Selection = Selection(),  # noqa: B008 - it is frozen
        *,
        after: Place | None = None,
        limit: int = 50,
        scan: int = SCAN,
        newest: bool = False,
        bodies: bool = True,
        within_s: float = inf,
        progress: Callable[[int], None] = lambda offsets: None,
    ) -> Page:
        """Return one page of the selected messages, in order of partition and offset.

        Places, times and ids are found by indexes. For other conditions the remaining offsets are examined in steps
        of 1000, with one short statement each.

        Args:
            after: begin after this place (partition, offset): the last page's ``after``.
            limit: the maximum number of messages.
            scan: the maximum number of offsets to examine (rounded up to a step).
            newest: from the end towards the beginning.
            bodies: read the bodies too; a predicate on bodies reads them anyway.
            within_s: the page also ends about this many seconds after its search began; at least one step, or 4 MB of
                bodies, is examined.
            progress: called with the number of offsets of each step.

        Raises:
            UnknownTopic: there is no topic of that name.
            PredicateError, ConfigError, InvalidName: the selection is wrong.
        """
        _check_counts(limit=limit, scan=scan)
        where, choice = self._topic_of(topic), Choice(selection)
        ranges = self._database.call(lambda session: choice.ranges(session, where))
        messages: list[StoredMessage] = []
        looked_at = unreadable = 0
        last: Place | None = None
        until = ticks() + within_s
        for step in in_steps(ranges, STEP, after, newest=newest):
            if len(messages) >= limit or looked_at >= scan or (looked_at and ticks() >= until):
                return Page(tuple(messages), looked_at, unreadable, last)
            one = MessageSearch(
                self._database, where, step, choice.predicate, bodies=bodies, newest=newest, until=until
            )
            messages += one.first(limit - len(messages))
            seen = one.examined
            looked_at, unreadable = looked_at + len(seen), unreadable + one.unreadable
            far_end = seen.start if newest else seen.end - 1
            last = messages[-1].place if len(messages) >= limit else (seen.partition, far_end)
            progress(len(seen))
        stopped = len(messages) >= limit or ticks() >= until  # perhaps before the end of the last step
        more = stopped and any(in_steps(ranges, STEP, last, newest=newest))
        return Page(tuple(messages), looked_at, unreadable, last if more else None)

    def peek(self, topic: str, group: str, *, limit: int = 10, scan: int = SCAN) -> Page:
        """Return the next messages that a group would claim, at most ``limit`` per partition; nothing is claimed.

        Raises:
            UnknownTopic, UnknownGroup: there is no topic or group of that name.
        """
        _check_counts(limit=limit, scan=scan)
        where, one = self._topic_of(topic), self._group_of(topic, group)
        positions = self._database.call(lambda session: cursor_store.list_positions(session, one))
        messages: list[StoredMessage] = []
        looked_at = 0
        for position in positions:
            found: list[StoredMessage] = []
            start = max(position.cursor, position.log_start)
            for step in OffsetRange(where.id, position.partition, start, position.end).steps(STEP):
                if len(found) >= limit or looked_at >= scan:
                    break
                found += MessageSearch(self._database, where, step, Predicate(), one.filter).first(limit - len(found))
                looked_at += len(step)
            messages += found
        return Page(tuple(messages), looked_at, 0, None)

    def get(self, what: str, topic: str | None = None) -> tuple[StoredMessage, ...]:
        """Return a message with its body, by its id or place; several if the id was used in several topics.

        Args:
            what: a message id, or ``topic/partition/offset``.
            topic: search only there.

        Raises:
            InvalidName: ``what`` is neither.
            UnknownTopic: there is no topic of that name.
            UnknownMessage: no such message is stored.
        """
        if "/" in str(what):
            name, *at = parse_place(what)
            places = [(self._topic_of(name), (at[0], at[1]))]
        else:
            uid = parse_uid(what)
            topic_id = None if topic is None else self._topic_of(topic).id
            hits = dict(self._database.call(lambda session: trace_store.find_message(session, topic_id, uid)))
            places = [(where, hits[where.id]) for where in self._topics(hits)]
        found = [message for where, place in places for message in self._at(where, place)]
        if not found:
            raise UnknownMessage(
                f"no message {what} is kept: it was never sent, is delayed, was cancelled, or retention has deleted it"
            )
        return tuple(found)

    def _at(self, topic: Topic, place: Place) -> Iterable[StoredMessage]:
        offsets = OffsetRange(topic.id, place[0], place[1], place[1] + 1)
        return MessageSearch(self._database, topic, offsets, Predicate()).first(1)

    def delayed_in(self, message_id: str) -> Sequence[str]:
        """Return the names of the topics in whose outbox a message waits for its time.

        Raises:
            InvalidName: not a message id.
        """
        uid = parse_uid(message_id)

        def work(session: Session) -> Sequence[Topic]:
            ids = search.find_delayed(session, delayed_topics(session), uid)
            return list_topics(session, ids)

        return [topic.name for topic in self._database.call(work)]

    def contains(self, topic: str, ids: Iterable[str]) -> dict[str, str | None]:
        """Look messages up: id -> ``stream``, ``delayed``, or ``None`` (never sent, cancelled, or deleted).

        Raises:
            InvalidName: one of the ids is not a message id.
            UnknownTopic: there is no topic of that name.
        """
        where = self._topic_of(topic)
        uids = {one: parse_uid(one) for one in ids}
        if not uids:
            return {}

        def work(session: Session) -> tuple[set[bytes], set[bytes]]:
            # Delayed messages first: one that becomes due meanwhile is then found in the stream.
            delayed = search.find_outbox(session, where.id, list(uids.values()))
            places = find_uids(session, where.id, list(uids.values()))
            rows = {uid: trace_store.get_message(session, where.id, place) for uid, place in places.items()}
            return delayed, {uid for uid, row in rows.items() if row is not None and row.kind == "message"}

        delayed, kept = self._database.call(work)
        return {one: "stream" if uid in kept else "delayed" if uid in delayed else None for one, uid in uids.items()}


def _check_counts(**counts: Any) -> None:
    refuse([problem for name, value in counts.items() for problem in _COUNT.problems(name, value)])


class MessageSearch:
    """Search in one range of offsets.

    Args:
        wanted: a group's filter.
        bodies: read the bodies, even if the predicate does not need them.
        newest: from the range's end to its beginning.
        until: by :func:`ticks`, when to stop; the first bodies are examined regardless.

    Attributes:
        examined: the range, or the part of it that was examined in time.
        unreadable: the number of messages whose bodies the predicate needs, and which cannot be read.
    """

    def __init__(
        self,
        database: Database,
        topic: Topic,
        offsets: OffsetRange,
        predicate: Predicate,
        wanted: Filter = EVERYTHING,
        *,
        bodies: bool = True,
        newest: bool = False,
        until: float = inf,
    ) -> None:
        self._database, self._topic, self._predicate = database, topic, predicate
        self._bodies, self._newest, self._offsets, self._wanted = bodies, newest, offsets, wanted
        self._until, self.examined = until, offsets
        self.unreadable = 0

    def first(self, limit: int) -> list[StoredMessage]:
        """Return at most ``limit`` messages that the predicate chooses."""
        return list(islice(self.matching(limit), limit))

    def matching(self, likely: int | None = None) -> Iterator[StoredMessage]:
        """Yield the messages that the predicate chooses.

        Args:
            likely: the number of messages that the caller wants: no more bodies are read than that needs.
        """
        bounds, judge = self._predicate.bounds, self._predicate
        rows = self._database.call(lambda session: search.list_messages(session, self._offsets, bounds, self._wanted))
        rows = [row for row in rows if judge.may_match(StoredMessage(self._topic.name, row))]
        if self._newest:
            rows.reverse()
        if not judge.uses_body and not self._bodies:
            yield from (StoredMessage(self._topic.name, row) for row in rows)
            return
        for message in self._with_bodies(rows if judge.uses_body else rows[:likely]):
            self.unreadable += judge.uses_body and message.problem is not None
            if judge.matches(message):
                yield message

    def _with_bodies(self, rows: list[Found]) -> Iterator[StoredMessage]:
        for number, batch in enumerate(in_batches(rows, lambda row: row.size, _BODIES_BYTES)):
            if number and ticks() >= self._until:
                at, whole_range = batch[0].offset, self._offsets
                self.examined = (
                    whole_range.part(at + 1, whole_range.end)
                    if self._newest
                    else whole_range.part(whole_range.start, at)
                )
                return
            bodies = self._database.call(partial(search.read_bodies, topic_id=self._topic.id, found=batch))
            for row in batch:
                if row.offset in bodies:
                    yield StoredMessage(self._topic.name, row, bodies[row.offset])
