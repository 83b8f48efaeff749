"""Monitoring of a stream, read-only: lag, a message's trace, clients, the size of topics."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from emsworker.admin.dead import parse_place
from emsworker.admin.lists import Delayed, delayed_of
from emsworker.app import Ems
from emsworker.core.counted import AtLeast, summed
from emsworker.core.errors import (
    AccessDenied,
    ConfigError,
    EmsError,
    Problem,
    UnknownGroup,
    UnknownMessage,
    UnknownTopic,
)
from emsworker.core.ids import parse_uid, uid_text
from emsworker.core.model import ClaimState, Group, Outcome, Topic
from emsworker.core.options import raise_problems, whole
from emsworker.core.preview import PreviewDecoder
from emsworker.core.run import Progress
from emsworker.core.times import in_utc
from emsworker.store import topics as topic_store
from emsworker.store.cluster import clients as client_store
from emsworker.store.cluster.audit import AuditRow, find_cancel
from emsworker.store.cluster.clients import ClientRow, LeaderRow
from emsworker.store.engine.database import Database
from emsworker.store.engine.schema import server_now
from emsworker.store.engine.session import Session
from emsworker.store.groups import dead as dead_store
from emsworker.store.groups import reports
from emsworker.store.inspect import lists as list_store
from emsworker.store.inspect import monitoring as store
from emsworker.store.inspect import samples as sample_store
from emsworker.store.inspect import trace as trace_store
from emsworker.store.inspect.monitoring import PartitionLag
from emsworker.store.inspect.samples import SamplePoint
from emsworker.store.inspect.trace import MessageHistory, MessageRow
from emsworker.store.stream.intake import count_refused

_POINTS = whole(2, 10_000)
_SERIES = timedelta(hours=72)
_FIRST_END = datetime.min.replace(tzinfo=UTC) + _SERIES


@dataclass(frozen=True)
class GroupLag:
    """The lag of a group, over all its partitions.

    Attributes:
        oldest_age_s: the age of its oldest unfinished message, in seconds, by the server's clock.
        claimed: messages that live clients hold and have not finished.
        waiting: messages that were claimed by a client that has stopped or died; another one will claim them.
        retries, dead: counted up to a limit (see :meth:`Monitoring.lag`) they, and ``lag``, are
            :class:`~emsworker.core.counted.AtLeast`, whose text is ``10,000+``.
        skipped: offsets that it skipped and never runs; ``ems_skip`` lists them and the reasons.
        partitions: the same for each partition; empty in a :class:`~emsworker.admin.standing.GroupStanding` that was
            not read just now.
        running: claims that live clients work on now: the threads that are busy.
        written: the last offsets of the topic's partitions, summed up: it grows by one with each message.
    """

    topic: Topic
    group: Group
    unclaimed: int
    claimed: int
    waiting: int
    retries: int
    dead: int
    oldest_age_s: float | None
    skipped: int
    partitions: tuple[PartitionLag, ...]
    running: int = 0
    written: int = 0

    @property
    def capped(self) -> bool:
        """True if retries or dead letters were counted up to a limit."""
        return isinstance(self.retries, AtLeast) or isinstance(self.dead, AtLeast)

    @property
    def lag(self) -> int:
        """Messages that are not finished: unclaimed, claimed, waiting for another client, or for a retry."""
        return summed((self.unclaimed, self.claimed, self.waiting, self.retries))


@dataclass(frozen=True)
class TopicSize:
    """The size of a topic: its messages (exact if there are few, else estimated) and their bytes, estimated.

    Attributes:
        bytes_estimate: ``None`` if it was not read; ``messages`` then counts offsets, with tombstones and what was
            cancelled.
    """

    topic: Topic
    messages: int
    bytes_estimate: int | None


@dataclass(frozen=True)
class ClientView:
    """A client with its lease and the number of claims that it holds.

    Attributes:
        groups: those that it holds claims of, as ``topic/group``.
        progress: the reports of handlers of its running messages, the latest last.
    """

    row: ClientRow
    claims: int
    groups: tuple[str, ...] = ()
    progress: tuple[Progress, ...] = ()


class TraceState(StrEnum):
    """The state of one message in one group."""

    UNCLAIMED = "unclaimed"
    WAITING = "waiting"
    CLAIMED = "claimed"
    RUNNING = "running"
    RETRY = "retry"
    BLOCKED = "blocked"
    DEAD = "dead"
    DONE = "done"
    DROPPED = "dropped"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class GroupTrace:
    """The state and history of a message in one group.

    Attributes:
        state: ``unclaimed``: not claimed yet; ``waiting``: in a claim that waits for an owner; ``claimed``: a client
            has it and has not finished it; ``running``: that client said that it runs it now; ``retry``: waits for its
            next attempt, or runs in it; ``blocked``: waits for an earlier message of its key, or in a fair group for
            those of other keys; ``dead``: given up; ``done``; ``dropped``: given up, and its dead letter deleted;
            ``skipped``: the group began after it; ``cancelled``: it was cancelled before the group claimed it, or while
            it ran.
        client_id: the client that has it, or had it last.
        progress: the last report of its handler, if it runs and reports progress.
    """

    group: Group
    state: TraceState
    client_id: str | None
    history: MessageHistory
    progress: Progress | None = None


@dataclass(frozen=True)
class Trace:
    """A message: its producer, and its state and history in each group.

    Attributes:
        message: ``None`` if retention has deleted it.
    """

    topic: Topic
    partition: int
    offset: int
    message: MessageRow | None
    headers: Mapping[str, str]
    groups: tuple[GroupTrace, ...]


@dataclass(frozen=True)
class Located:
    """All that is known of a message that somebody looks for.

    Attributes:
        traces: in the stream; several if the id was used in several topics.
        delayed: in the outbox.
        cancelled: who cancelled it and when, if the audit tells: on the dashboard, or by `ems cancel`.
    """

    traces: tuple[Trace, ...]
    delayed: tuple[Delayed, ...]
    cancelled: AuditRow | None


class Monitoring:
    """Numbers and histories of a stream.

    Args:
        stream: an app, or its database.
    """

    def __init__(self, stream: Ems | Database) -> None:
        self._database = stream.stream.database if isinstance(stream, Ems) else stream

    def lag(self, most: int | None = None, *, topic: str | None = None, group: str | None = None) -> list[GroupLag]:
        """The lag of every group, ordered by topic and group.

        Args:
            most: count at most this many retries, and dead letters, of each group, so that the cost does not grow with
                them; ``None`` counts all.
            topic: only of its groups; group: only this one of them.

        Raises:
            UnknownTopic: there is no such topic.
        """
        if topic is None:
            return self._database.call(lambda session: read_lags(session, most))
        where = self._topics(topic)[0]

        def work(session: Session) -> list[GroupLag]:
            groups = topic_store.list_groups(session, topic_id=where.id)
            return read_lags(session, most, {one.id: one for one in groups if group in (None, one.name)})

        return self._database.call(work)

    def refused(self, most: int = 1000) -> int:
        """Count the rows of ``ems_publish`` that are refused; ``most`` stands for itself or more."""
        return self._database.call(lambda session: count_refused(session, most))

    def series(
        self,
        topic: str | None = None,
        group: str | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        points: int = 200,
    ) -> list[SamplePoint]:
        """The history of a group, of a topic or of the whole stream, from the samples that the beat takes.

        Args:
            topic: without a group: messages written to it, and the sums of its groups.
            since: by default 72 hours before ``until``; until: by default now. Without a zone they are in UTC.
            points: the maximum number of points; each is the highest of the samples that it stands for.

        Raises:
            UnknownTopic, UnknownGroup: there is no such topic or group.
            ConfigError: ``points`` or the times are wrong, or a group was given without a topic.
        """
        raise_problems(_POINTS.problems("points", points))
        owner = self._owner(topic, group)

        def work(session: Any) -> list[SamplePoint]:
            end = in_utc(until) if until else server_now(session)
            start = in_utc(since) if since else max(end, _FIRST_END) - _SERIES
            if start >= end:
                raise ConfigError([Problem("since", start.isoformat(), f"must lie before until ({end.isoformat()})")])
            return sample_store.read_series(session, *owner, start, end, points)

        return self._database.call(work)

    def ranking(self) -> list[TopicSize]:
        """All topics, the one with the most messages first."""

        def work(session: Session) -> list[TopicSize]:
            return read_sizes(session, topic_store.list_topics(session))

        return sorted(self._database.call(work), key=lambda size: (-size.messages, size.topic.name))

    def size(self, topic: str) -> TopicSize:
        """The size of one topic.

        Raises:
            UnknownTopic: there is no such topic.
        """
        where = self._topics(topic)
        return self._database.call(lambda session: read_sizes(session, where, {where[0].id}))[0]

    def find(self, what: str) -> tuple[Topic, str | None] | None:
        """Find the topic of that name, or a group by its name or as ``topic/group``.

        Returns:
            the topic, and the name of the group if it is one; ``None`` if there is nothing of that name. Of several
            groups of one name any.
        """

        def work(session: Session) -> tuple[Topic, str | None] | None:
            if (topic := topic_store.get_topic(session, what)) is not None:
                return topic, None
            name, slash, group = what.rpartition("/")
            place = (name, group) if slash else topic_store.find_group(session, what)
            topic = topic_store.get_topic(session, place[0]) if place else None
            if topic is None or place is None or topic_store.get_group(session, topic, place[1]) is None:
                return None
            return topic, place[1]

        return self._database.call(work)

    def rates(self, groups: Collection[tuple[Topic, Group]] | None = None) -> dict[tuple[str, str], SamplePoint]:
        """The latest samples of groups by topic and group, with the rates of the last minute; two statements.

        Empty if the beat takes no samples.

        Args:
            groups: only these; ``None`` for all.
        """

        def work(session: Session) -> dict[tuple[str, str], SamplePoint]:
            if groups is not None:
                names = {(topic.id, group.id): (topic.name, group.name) for topic, group in groups}
                points = sample_store.read_latest(session, {group_id for _, group_id in names})
                return {names[place]: point for place, point in points.items() if place in names}
            topics = {topic.id: topic.name for topic in topic_store.list_topics(session)}
            names = {
                (one.topic_id, one.id): (topics.get(one.topic_id, ""), one.name)
                for one in topic_store.list_groups(session)
            }
            return {names[place]: point for place, point in sample_store.read_latest(session).items() if place in names}

        return self._database.call(work)

    def _owner(self, topic: str | None, group: str | None) -> tuple[int, int]:
        """Return the ids of a topic and a group by which their samples are found; 0 for all."""
        if topic is None and group is not None:
            raise ConfigError([Problem("group", repr(group), "name its topic, too")])
        if topic is None:
            return 0, 0
        where = self._topics(topic)[0]
        if group is None:
            return where.id, 0
        found = self._database.call(lambda session: topic_store.get_group(session, where, group))
        if found is not None:
            return where.id, found.id
        raise UnknownGroup(f"topic {topic!r} has no group {group!r}; `ems groups list` shows those that exist")

    def clients(self) -> list[ClientView]:
        """All clients with their leases, including expired ones that are not removed yet."""

        def work(session: Any) -> list[ClientView]:
            claims = store.claims_by_client(session)
            told = reports.list_by_client(session)
            names = _group_names(session, {group_id for held in claims.values() for group_id in held})
            views = []
            for row in client_store.list_clients(session):
                held = claims.get(row.client_id, {})
                groups = tuple(sorted(names[group_id] for group_id in held if group_id in names))
                views.append(ClientView(row, sum(held.values()), groups, tuple(told.get(row.client_id, ()))))
            return views

        return self._database.call(work)

    def leaders(self) -> list[LeaderRow]:
        """The leaders of the beat's services."""
        return self._database.call(client_store.list_leaders)

    # -- one message ---------------------------------------------------------------------------------------------------

    def locate(self, what: str, topic: str | None = None, *, details: bool = True) -> Located:
        """Find a message in whatever state: delayed, in the stream, dead, or cancelled.

        Args:
            what: its id, or ``topic/partition/offset``.
            topic: look there only.
            details: see :meth:`trace`.

        Raises:
            InvalidName: ``what`` is neither.
            UnknownTopic: there is no such topic.
            UnknownMessage: nothing is known of it.
        """
        if "/" in what:
            one = self.trace_at(*parse_place(what), details=details)
            uid = one.message.uid if one.message is not None and one.message.kind == "cancelled" else None
            return Located((one,), (), None if uid is None else self._cancelled(uid))
        uid = parse_uid(what)
        # The outbox first: a message that the relay moves meanwhile is then found in the stream.
        delayed = self._delayed(uid, topic, details)
        try:
            traces = self.trace(what, topic, details=details)
        except UnknownMessage as error:
            cancelled = None if delayed else self._cancelled(uid)
            if not delayed and cancelled is None:
                raise UnknownMessage(
                    f"no message {what} is kept: it was never sent, was cancelled while it was delayed, or retention "
                    "has deleted it"
                ) from error
            return Located((), delayed, cancelled)
        moved = {one.topic.name for one in traces}
        was_cancelled = any(one.message is not None and one.message.kind == "cancelled" for one in traces)
        return Located(
            tuple(traces),
            tuple(one for one in delayed if one.topic not in moved),
            self._cancelled(uid) if was_cancelled else None,
        )

    def _delayed(self, uid: bytes, topic: str | None, details: bool) -> tuple[Delayed, ...]:
        where = None if topic is None else {one.id for one in self._topics(topic)}

        def work(session: Session) -> tuple[Delayed, ...]:
            topic_ids = list_store.delayed_topics(session) if where is None else where
            rows = list_store.find_delayed(session, topic_ids, uid, details)
            names = {one.id: one.name for one in topic_store.list_topics(session, {row.topic_id for row in rows})}
            return tuple(delayed_of(row, names[row.topic_id]) for row in rows if row.topic_id in names)

        return self._database.call(work)

    def _cancelled(self, uid: bytes) -> AuditRow | None:
        try:
            return self._database.call(lambda session: find_cancel(session, uid_text(uid)))
        except AccessDenied:
            return None

    def trace(self, uid: str, topic: str | None = None, *, details: bool = True) -> list[Trace]:
        """The trace of a message by its id; several if the id was used in several topics.

        Args:
            uid: the message's id.
            topic: look there only.
            details: read headers, errors and reasons too, which the role `viewer` may not.

        Raises:
            InvalidName: ``uid`` is not an id.
            UnknownTopic: there is no such topic.
            UnknownMessage: no message of that id is in the stream; :meth:`locate` finds delayed ones too.
        """
        raw = parse_uid(uid)
        topic_id = None if topic is None else self._topics(topic)[0].id

        def find(session: Session) -> tuple[set[tuple[int, tuple[int, int]]], dict[int, Topic]]:
            found = set(trace_store.find_message(session, topic_id, raw))
            if not found:
                dead = dead_store.find_dead(session, None, raw)
                groups = topic_store.list_groups(session, topic_id=topic_id, ids={group_id for group_id, _ in dead})
                topic_of = {one.id: one.topic_id for one in groups}
                found = {(topic_of[g], place) for g, place in dead if g in topic_of}
            return found, {one.id: one for one in topic_store.list_topics(session, {place[0] for place in found})}

        found, topics = self._database.call(find)
        if not found:
            raise UnknownMessage(
                f"no message with the id {uid} is in the stream; it was never sent, is delayed, or retention has "
                "deleted it"
            )
        return [self._trace(topics[at], place, details) for at, place in sorted(found) if at in topics]

    def trace_at(self, topic: str, partition: int, offset: int, *, details: bool = True) -> Trace:
        """The trace of the message at a place.

        Args:
            details: see :meth:`trace`.

        Raises:
            UnknownTopic: there is no such topic.
            UnknownMessage: it has no such partition, or its end lies before the offset.
        """
        where = self._topics(topic)[0]
        bounds = self._database.call(lambda session: trace_store.get_bounds(session, where.id, partition))
        if bounds is None:
            raise UnknownMessage(f"topic {topic!r} has no partition {partition}; it has 0 to {where.partitions - 1}")
        if not 1 <= offset < bounds[1]:
            raise UnknownMessage(
                f"partition {partition} of topic {topic!r} has no offset {offset}; its next is {bounds[1]}"
            )
        return self._trace(where, (partition, offset), details)

    def _topics(self, name: str | None) -> list[Topic]:
        if name is None:
            return self._database.call(topic_store.list_topics)
        topic = self._database.call(lambda session: topic_store.get_topic(session, name))
        if topic is None:
            raise UnknownTopic(f"there is no topic {name!r}; `ems topics list` shows those that exist")
        return [topic]

    def _trace(self, topic: Topic, place: tuple[int, int], details: bool) -> Trace:
        def work(session: Any) -> Trace:
            message = trace_store.get_message(session, topic.id, place, details=details)
            groups = topic_store.list_groups(session, topic_id=topic.id)
            histories = [trace_store.get_history(session, group.id, place, details=details) for group in groups]
            cancelled = message is not None and message.kind == "cancelled"
            traces = [_judge(group, place[1], one, cancelled) for group, one in zip(groups, histories, strict=True)]
            if message is not None and message.uid is not None:
                uid = message.uid
                told = [reports.find(session, [topic.id], [uid], group.name).get(uid) for group in groups]
                traces = [replace(one, progress=progress) for one, progress in zip(traces, told, strict=True)]
            return Trace(topic, *place, message, _headers(message), tuple(traces))

        return self._database.call(work)


def _group_names(session: Session, ids: Collection[int]) -> dict[int, str]:
    """Return the names of groups as ``topic/group``."""
    groups = topic_store.list_groups(session, ids=ids)
    topics = {one.id: one.name for one in topic_store.list_topics(session, {group.topic_id for group in groups})}
    return {one.id: f"{topics[one.topic_id]}/{one.name}" for one in groups if one.topic_id in topics}


def _headers(message: MessageRow | None) -> Mapping[str, str]:
    try:
        return PreviewDecoder().headers(message.headers) if message is not None else {}
    except EmsError as error:
        return {"(not shown)": str(error)}


def read_sizes(session: Session, topics: Sequence[Topic], topic_ids: Collection[int] | None = None) -> list[TopicSize]:
    """Read the sizes of topics.

    Args:
        topic_ids: of the topics, if they are not all; ``None`` reads every partition.
    """
    extents = store.list_extents(session, topic_ids)
    counts = store.count_messages(session, extents)
    sizes = store.mean_sizes(session, extents)
    parts: dict[int, list[tuple[int, float]]] = {}
    for extent, count, size in zip(extents, counts, sizes, strict=True):
        parts.setdefault(extent.topic_id, []).append((count, size))
    found = []
    for topic in topics:
        own = parts.get(topic.id, [])
        total = round(sum(count * size for count, size in own))
        found.append(TopicSize(topic, sum(count for count, _ in own), total))
    return found


def read_lags(session: Session, most: int | None = None, group_ids: Collection[int] | None = None) -> list[GroupLag]:
    """Read the lag of groups; see :meth:`Monitoring.lag`.

    Args:
        group_ids: only of these groups; ``None`` for all.
    """
    every = topic_store.list_groups(session, ids=group_ids)
    topic_ids = None if group_ids is None else {group.topic_id for group in every}
    topics = {topic.id: topic for topic in topic_store.list_topics(session, topic_ids)}
    groups = [group for group in every if group.topic_id in topics]
    topic_of = {group.id: group.topic_id for group in groups}
    lags = [lag for lag in store.list_lags(session, most, group_ids) if lag.group_id in topic_of]
    behind = [lag for lag in lags if lag.lowest is not None]
    places = [(topic_of[lag.group_id], lag.partition, lag.lowest or 0) for lag in behind]
    ages = zip(behind, store.ages_of(session, places), strict=True)
    age_of = {(lag.group_id, lag.partition): age for lag, age in ages if age is not None}
    running = store.count_running(session, group_ids)
    own: dict[int, list[PartitionLag]] = {}
    for lag in lags:
        own.setdefault(lag.group_id, []).append(lag)
    found = [
        _sum(topics[group.topic_id], group, tuple(own.get(group.id, ())), age_of, running.get(group.id, 0))
        for group in groups
    ]
    return sorted(found, key=lambda one: (one.topic.name, one.group.name))


def _sum(
    topic: Topic, group: Group, own: tuple[PartitionLag, ...], age_of: Mapping[tuple[int, int], float], running: int
) -> GroupLag:
    ages = [age_of[group.id, lag.partition] for lag in own if (group.id, lag.partition) in age_of]
    return GroupLag(
        topic,
        group,
        sum(lag.unclaimed for lag in own),
        sum(lag.claimed for lag in own),
        sum(lag.waiting for lag in own),
        summed(lag.retries for lag in own),
        summed(lag.dead for lag in own),
        max(ages, default=None),
        sum(lag.skipped for lag in own),
        own,
        running,
        sum(lag.last_offset for lag in own),
    )


def _judge(group: Group, offset: int, history: MessageHistory, cancelled: bool) -> GroupTrace:
    client_id = history.claim.client_id if history.claim is not None else None
    if history.attempts:
        client_id = history.attempts[-1].client_id or client_id
    if history.retry is not None:
        blocked = history.retry.due_at is None and history.retry.claimed_at is None
        state = TraceState.BLOCKED if blocked else TraceState.RETRY
        return GroupTrace(group, state, history.retry.client_id or client_id, history)
    if history.dead is not None:
        return GroupTrace(group, TraceState.DEAD, client_id, history)
    state = _state(offset, history)
    if cancelled and state is TraceState.UNCLAIMED:
        state = TraceState.CANCELLED
    return GroupTrace(group, state, client_id, history)


def _state(offset: int, history: MessageHistory) -> TraceState:
    if history.cursor is None or offset >= history.cursor:
        return TraceState.UNCLAIMED
    claim = history.claim
    if claim is not None and offset > claim.acked_to and claim.state is not ClaimState.DONE:
        if claim.state is ClaimState.WAITING:
            return TraceState.WAITING
        return TraceState.RUNNING if claim.running == offset else TraceState.CLAIMED
    if history.attempts:
        if history.attempts[-1].outcome is Outcome.CANCELLED:
            return TraceState.CANCELLED
        ended_well = history.attempts[-1].outcome in (Outcome.DONE, Outcome.IGNORED, Outcome.EXPIRED)
        return TraceState.DONE if ended_well else TraceState.DROPPED
    return TraceState.DONE if claim is not None else TraceState.SKIPPED
