"""Read-only access to messages: list, peek and get, behind ``ems messages``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from math import inf
from typing import Any

from emsworker.admin.dead import parse_place
from emsworker.admin.large import whole_body
from emsworker.admin.selection import Choice, Place, Selection, in_steps
from emsworker.core.batches import in_batches
from emsworker.core.errors import UnknownMessage
from emsworker.core.ids import decode_key, parse_uid, uid_text
from emsworker.core.model import Group, Topic
from emsworker.core.offsets import OffsetRange
from emsworker.core.options import raise_problems, whole
from emsworker.core.preview import LIST_BYTES, FullDecoder, Preview, PreviewDecoder
from emsworker.core.process.clock import ticks
from emsworker.core.process.forks import lazy
from emsworker.core.selection.filters import EVERYTHING, Filter
from emsworker.core.selection.predicate import Predicate
from emsworker.store.engine.database import Database
from emsworker.store.engine.session import Session
from emsworker.store.groups import cursors as cursor_store
from emsworker.store.inspect import trace as trace_store
from emsworker.store.stream import search
from emsworker.store.stream.messages import find_uids
from emsworker.store.stream.search import Found

STEP = 1000
SCAN = 100_000
_BODIES_BYTES = 4 << 20
_ENDLESS = 1 << 62
_COUNT = whole(1)


BEGINNING_BYTES = 1024
"""Of a body, for a list."""


class StoredMessage:
    """Message as stored in the stream; what it holds is decoded as far as it may be shown (:class:`PreviewDecoder`).

    Attributes:
        topic, partition, offset: its place.
        key_bytes, tag_bytes: the stored bytes, or ``None``; ``key`` and ``tag`` give them as text.
        size: the size of the encoded body, in bytes.
        born_at: the time when it was written, in UTC.
        producer: the id of its sender.
        raw: the encoded body, or as much of it as was requested; ``None`` if it was not requested.
    """

    def __init__(
        self, topic: str, found: Found, decoder: PreviewDecoder | FullDecoder, raw: bytes | None = None
    ) -> None:
        self.topic, self.raw, self._decoder = topic, raw, decoder
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
    def _preview(self) -> Preview:
        return self._decoder.preview(self._raw_headers, self.raw)

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, including those of EMS; empty if they are damaged, or longer than 64 KB."""
        return self._preview.headers

    @property
    def body(self) -> Any:
        """The decoded body; ``None`` if it is not decoded (see ``problem``) or was not requested."""
        return self._preview.body

    @property
    def problem(self) -> str | None:
        """Reason why the body or the headers are not decoded; ``None`` if they are."""
        return self._preview.problem

    @property
    def text(self) -> str | None:
        """The beginning of a body that is not decoded, as text."""
        return self._preview.text

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
        of 1000, with one short statement each. With bodies a page also ends after some 4 MB of them.

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
        until, room, decoder = ticks() + within_s, LIST_BYTES, PreviewDecoder()
        for step in in_steps(ranges, STEP, after, newest=newest):
            if len(messages) >= limit or looked_at >= scan or room <= 0 or (looked_at and ticks() >= until):
                return Page(tuple(messages), looked_at, unreadable, last)
            one = MessageSearch(
                self._database,
                where,
                step,
                choice.predicate,
                decoder=decoder,
                bodies=bodies,
                newest=newest,
                until=until,
                room=room,
            )
            messages += one.first(limit - len(messages))
            seen, room = one.examined, one.room
            looked_at, unreadable = looked_at + len(seen), unreadable + one.unreadable
            far_end = seen.start if newest else seen.end - 1
            last = messages[-1].place if len(messages) >= limit else (seen.partition, far_end)
            progress(len(seen))
        stopped = len(messages) >= limit or room <= 0 or ticks() >= until  # perhaps before the end of the last step
        more = stopped and any(in_steps(ranges, STEP, last, newest=newest))
        return Page(tuple(messages), looked_at, unreadable, last if more else None)

    def beginnings(self, topic: str, messages: Iterable[StoredMessage]) -> dict[Place, bytes]:
        """Return the first kilobyte of each body, as it is stored; without those cancelled or deleted meanwhile.

        Args:
            messages: of the topic, as many as a page has.

        Raises:
            UnknownTopic: there is no topic of that name.
        """
        where = self._topic_of(topic)
        by_partition: dict[int, list[int]] = {}
        for one in messages:
            by_partition.setdefault(one.partition, []).append(one.offset)
        found: dict[Place, bytes] = {}
        for partition, offsets in by_partition.items():
            read = partial(
                search.read_bodies,
                topic_id=where.id,
                partition=partition,
                offsets=offsets,
                body_bytes=BEGINNING_BYTES,
            )
            found |= {(partition, offset): body for offset, body in self._database.call(read).items()}
        return found

    def peek(self, topic: str, group: str, *, limit: int = 10, scan: int = SCAN, bodies: bool = True) -> Page:
        """Return the next messages that a group would claim, at most ``limit`` per partition; nothing is claimed.

        Args:
            bodies: read the bodies, some 4 MB of them at most; no more messages are returned then.

        Raises:
            UnknownTopic, UnknownGroup: there is no topic or group of that name.
        """
        _check_counts(limit=limit, scan=scan)
        where, one = self._topic_of(topic), self._group_of(topic, group)
        positions = self._database.call(lambda session: cursor_store.list_positions(session, one))
        messages: list[StoredMessage] = []
        looked_at, room, decoder = 0, LIST_BYTES, PreviewDecoder()
        for position in positions:
            found: list[StoredMessage] = []
            start = max(position.cursor, position.log_start)
            for step in OffsetRange(where.id, position.partition, start, position.end).steps(STEP):
                if len(found) >= limit or looked_at >= scan or room <= 0:
                    break
                look = MessageSearch(
                    self._database, where, step, Predicate(), one.filter, decoder=decoder, bodies=bodies, room=room
                )
                found += look.first(limit - len(found))
                looked_at, room = looked_at + len(step), look.room
            messages += found
        return Page(tuple(messages), looked_at, 0, None)

    def get(self, what: str, topic: str | None = None, *, whole: bool = True) -> tuple[StoredMessage, ...]:
        """Return a message with its body, by its id or place; several if the id was used in several topics.

        Args:
            what: a message id, or ``topic/partition/offset``.
            topic: search only there.
            whole: ``raw`` is the whole body, however large; else no more than can be decoded to be shown (1 MB).

        Raises:
            InvalidName: ``what`` is neither.
            UnknownTopic: there is no topic of that name.
            UnknownMessage: no such message is stored.
            DecodeError: ``whole``, and its body is kept beside it and is not there.
        """
        if "/" in str(what):
            name, *at = parse_place(what)
            places = [(self._topic_of(name), (at[0], at[1]))]
        else:
            uid = parse_uid(what)
            topic_id = None if topic is None else self._topic_of(topic).id
            hits = dict(self._database.call(lambda session: trace_store.find_message(session, topic_id, uid)))
            places = [(where, hits[where.id]) for where in self._topics(hits)]
        found = [message for where, place in places for message in self._at(where, place, whole)]
        if not found:
            raise UnknownMessage(
                f"no message {what} is kept: it was never sent, is delayed, was cancelled, or retention has deleted it"
            )
        if whole:
            for message in found:
                message.raw = whole_body(self._database, message.headers, message.raw or b"")
        return tuple(found)

    def _at(self, topic: Topic, place: Place, whole: bool) -> Iterable[StoredMessage]:
        offsets, decoder = OffsetRange(topic.id, place[0], place[1], place[1] + 1), PreviewDecoder()
        body_bytes = FullDecoder.body_bytes if whole else decoder.body_bytes
        look = MessageSearch(self._database, topic, offsets, Predicate(), decoder=decoder, body_bytes=body_bytes)
        return look.first(1)

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
    raise_problems([problem for name, value in counts.items() for problem in _COUNT.problems(name, value)])


class MessageSearch:
    """Search in one range of offsets.

    Args:
        wanted: a group's filter.
        decoder: decodes what the predicate asks for, and what the messages show.
        body_bytes: the most bytes that are read of a body, by default what the decoder decodes.
        bodies: return the bodies; a predicate that needs them reads them in any case.
        newest: from the range's end to its beginning.
        until: by :func:`ticks`, when to stop; the first bodies are examined regardless.
        room: bytes of returned bodies after which to stop.

    Attributes:
        examined: the range, or the part of it that was examined in time, or until there was no more room.
        room: what is left of it.
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
        decoder: PreviewDecoder | FullDecoder,
        body_bytes: int | None = None,
        bodies: bool = True,
        newest: bool = False,
        until: float = inf,
        room: int = _ENDLESS,
    ) -> None:
        self._database, self._topic, self._predicate = database, topic, predicate
        self._bodies, self._newest, self._offsets, self._wanted = bodies, newest, offsets, wanted
        self._decoder, self._body_bytes = decoder, decoder.body_bytes if body_bytes is None else body_bytes
        self._until, self.examined = until, offsets
        self.unreadable, self.room = 0, room

    def first(self, limit: int) -> list[StoredMessage]:
        """Return at most ``limit`` messages that the predicate chooses."""
        return list(islice(self.matching(limit), limit))

    def matching(self, likely: int | None = None) -> Iterator[StoredMessage]:
        """Yield the messages that the predicate chooses.

        Args:
            likely: the number of messages that the caller wants: no more bodies are read than that needs.
        """
        judge, header_bytes = self._predicate, self._decoder.header_bytes
        read = partial(
            search.list_messages,
            offsets=self._offsets,
            bounds=judge.bounds,
            wanted=self._wanted,
            header_bytes=header_bytes,
        )
        rows = [row for row in self._database.call(read) if judge.may_match(self._message(row))]
        if self._newest:
            rows.reverse()
        if not judge.uses_body and not self._bodies:
            yield from map(self._message, rows)
            return
        for row, raw in self._with_bodies(rows if judge.uses_body else rows[:likely]):
            if judge.uses_body:
                judged = StoredMessage(self._topic.name, row, self._decoder.alone(), raw)
                self.unreadable += judged.problem is not None
                if not judge.matches(judged):
                    continue
            if self._bodies:
                self.room -= len(raw)
            yield self._message(row, raw if self._bodies else None)

    def _message(self, row: Found, raw: bytes | None = None) -> StoredMessage:
        return StoredMessage(self._topic.name, row, self._decoder, raw)

    def _with_bodies(self, rows: list[Found]) -> Iterator[tuple[Found, bytes]]:
        most = self._body_bytes
        for number, batch in enumerate(in_batches(rows, lambda row: min(row.size, most), _BODIES_BYTES)):
            if number and (ticks() >= self._until or self.room <= 0):
                at, whole_range = batch[0].offset, self._offsets
                self.examined = (
                    whole_range.part(at + 1, whole_range.end)
                    if self._newest
                    else whole_range.part(whole_range.start, at)
                )
                return
            offsets = [row.offset for row in batch]
            read = partial(
                search.read_bodies,
                topic_id=self._topic.id,
                partition=batch[0].partition,
                offsets=offsets,
                body_bytes=most,
            )
            bodies = self._database.call(read)
            for row in batch:
                if row.offset in bodies:
                    yield row, bodies[row.offset]
