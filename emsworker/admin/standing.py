"""Groups and topics of a stream, ranked: read now if they are few, else from the latest samples of the beat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest

from emsworker.admin.group_states import GroupStatus, read_states
from emsworker.admin.monitoring import GroupLag, TopicSize, read_lags, read_sizes
from emsworker.app import Ems
from emsworker.core.counted import summed
from emsworker.core.model import Group, Topic
from emsworker.store import topics as topic_store
from emsworker.store.engine.database import Database
from emsworker.store.engine.session import Session
from emsworker.store.inspect import latest
from emsworker.store.inspect.latest import GroupChoice, GroupNumbers, StreamSums

FEW = 2_000  # partitions, and groups x partitions, of a stream that is read anew whenever it is looked at
_STALE_S = 300.0  # without a beat, everything is read
_ALL = 1 << 31


@dataclass(frozen=True)
class GroupStanding:
    """Groups with the most lag, and sums over all groups.

    Attributes:
        groups: those that were asked for; without their ``partitions`` if ``age_s`` is given.
        count: the number of groups that match; ``None`` if there are more than were asked for, and they were not
            counted.
        total: sums over all groups of the stream, whether they match or not.
        age_s: the age of the numbers in seconds; ``None`` if they were read just now.
    """

    groups: Sequence[GroupLag]
    count: int | None
    total: StreamSums
    age_s: float | None


@dataclass(frozen=True)
class TopicStanding:
    """The longest topics.

    Attributes:
        topics: those that were asked for, with their sizes.
        count: the number of topics that match; ``None`` if it was not counted, see :class:`GroupStanding`.
        groups: the number of groups of each, by its name.
        age_s: the age of the order and of the number of groups; ``None`` if they were read just now.
    """

    topics: Sequence[TopicSize]
    count: int | None
    groups: Counter[str]
    age_s: float | None


class Standings:
    """The groups and topics of a stream, ranked.

    A stream of at most ``FEW`` partitions and groups x partitions is read anew. Of a larger one the beat's latest
    samples are read, and of these only the rows that are asked for; without a beat it is read anew, too.

    Args:
        stream: an app, or its database.
    """

    def __init__(self, stream: Ems | Database) -> None:
        self._database = stream.stream.database if isinstance(stream, Ems) else stream

    def groups(
        self,
        limit: int | None = None,
        *,
        text: str = "",
        choice: GroupChoice | None = None,
        most: int | None = None,
        exact: bool = False,
    ) -> GroupStanding:
        """Return the groups with the most lag.

        Args:
            limit: the maximum number of groups.
            text: only groups whose ``topic/group`` contains it.
            choice: only such groups.
            most: when read now, count at most this many retries, and dead letters, of each group.
            exact: read now, however many there are.
        """

        def work(session: Session) -> GroupStanding:
            sums = None if exact else _sums_of_many(session)
            if sums is not None:
                return _kept_groups(session, sums, limit, text, choice)
            return _read_groups(session, limit, lambda one: _matches(one, text, choice), most)

        return self._database.call(work)

    def states(
        self, lags: Sequence[GroupLag], rates: Mapping[int, float | None] | None = None
    ) -> dict[int, GroupStatus]:
        """Return the states of groups by id, and the alarms that fire for them.

        Args:
            rates: messages a second that the groups have finished lately; by default the beat's samples are read.
        """
        return self._database.call(lambda session: read_states(session, lags, rates))

    def topics(
        self, limit: int | None = None, *, text: str = "", exact: bool = False, measured: bool = True
    ) -> TopicStanding:
        """Return the longest topics.

        Args:
            limit: the maximum number of topics.
            text: only topics whose name contains it.
            exact: read now, however many there are.
            measured: of many topics, read the sizes of those that a limit leaves now, instead of from the samples.
        """

        def work(session: Session) -> TopicStanding:
            sums = None if exact else _sums_of_many(session)
            if sums is not None:
                return _kept_topics(session, sums, limit, text, measured=measured)
            return _read_topics(session, limit, text)

        return self._database.call(work)


def _sums_of_many(session: Session) -> StreamSums | None:
    """Return the sums of a stream whose samples are to be read; ``None`` if it is to be read itself."""
    sums = latest.get_stream(session)
    return sums if sums is not None and sums.places > FEW and sums.age_s <= _STALE_S else None


# -- read now ----------------------------------------------------------------------------------------------------------


def _matches(one: GroupLag, text: str, choice: GroupChoice | None) -> bool:
    if text not in f"{one.topic.name}/{one.group.name}":
        return False
    if choice is None or one.group.paused:
        return choice in (None, GroupChoice.PAUSED)
    return choice is (GroupChoice.WAITING if one.lag else GroupChoice.IDLE)


def _read_groups(
    session: Session, limit: int | None, matches: Callable[[GroupLag], bool], most: int | None
) -> GroupStanding:
    lags = read_lags(session, most)
    wanted = [one for one in lags if matches(one)]
    ages = [one.oldest_age_s for one in lags if one.oldest_age_s is not None]
    total = StreamSums(
        age_s=0.0,
        lag=summed(one.lag for one in lags),
        running=sum(one.running for one in lags),
        retries=summed(one.retries for one in lags),
        dead=summed(one.dead for one in lags),
        oldest_s=max(ages, default=None),
        topics=sum(topic.server is None for topic in topic_store.list_topics(session)),
        groups=len(lags),
        places=sum(len(one.partitions) for one in lags),
    )
    return GroupStanding(_most_lag(wanted)[:limit], len(wanted), total, None)


def _most_lag(lags: Sequence[GroupLag]) -> list[GroupLag]:
    return sorted(lags, key=lambda one: (-one.lag, one.topic.name, one.group.name))


def _read_topics(session: Session, limit: int | None, text: str) -> TopicStanding:
    every = topic_store.list_topics(session)
    names = {topic.id: topic.name for topic in every}
    counts = Counter(names[group.topic_id] for group in topic_store.list_groups(session) if group.topic_id in names)
    sizes = [one for one in read_sizes(session, every) if text in one.topic.name]
    return TopicStanding(nsmallest(_ALL if limit is None else limit, sizes, key=_longest), len(sizes), counts, None)


def _longest(size: TopicSize) -> tuple[int, str]:
    return -size.messages, size.topic.name


# -- kept by the beat --------------------------------------------------------------------------------------------------


def _kept_groups(
    session: Session, sums: StreamSums, limit: int | None, text: str, choice: GroupChoice | None
) -> GroupStanding:
    rows = latest.list_groups(session, _ALL if limit is None else limit + 1, text, choice)
    more, rows = limit is not None and len(rows) > limit, rows[:limit]
    topics, groups = _by_id(session, rows, limit is None)
    found = [
        _group_lag(row, topics[row.topic_id], groups[row.group_id], sums.age_s)
        for row in rows
        if row.topic_id in topics and row.group_id in groups
    ]
    count = sums.groups if not text and choice is None else None if more else len(found)
    return GroupStanding(_most_lag(found), max(count, len(found)) if count is not None else None, sums, sums.age_s)


def _by_id(session: Session, rows: Sequence[GroupNumbers], every: bool) -> tuple[dict[int, Topic], dict[int, Group]]:
    topic_ids, group_ids = {row.topic_id for row in rows}, {row.group_id for row in rows}
    topics = topic_store.list_topics(session, None if every else topic_ids)
    groups = topic_store.list_groups(session, ids=None if every else group_ids)
    return {one.id: one for one in topics}, {one.id: one for one in groups}


def _group_lag(row: GroupNumbers, topic: Topic, group: Group, age_s: float) -> GroupLag:
    return GroupLag(
        topic,
        group,
        *(row.unclaimed, row.claimed, row.waiting, row.retries, row.dead),
        None if row.oldest_ms is None else row.oldest_ms / 1000 + age_s,
        row.skipped,
        (),
        row.running,
        row.written,
    )


def _kept_topics(session: Session, sums: StreamSums, limit: int | None, text: str, *, measured: bool) -> TopicStanding:
    rows = latest.list_topics(session, _ALL if limit is None else limit + 1, text)
    more, rows = limit is not None and len(rows) > limit, rows[:limit]
    topics = {
        one.id: one
        for one in topic_store.list_topics(session, None if limit is None else {row.topic_id for row in rows})
    }
    if limit is None or not measured:
        sizes = [TopicSize(topics[row.topic_id], row.kept, None) for row in rows if row.topic_id in topics]
    else:
        shown = [topics[row.topic_id] for row in rows if row.topic_id in topics]
        sizes = read_sizes(session, shown, {topic.id for topic in shown})
    counts = Counter({topics[row.topic_id].name: row.groups for row in rows if row.topic_id in topics})
    count = sums.topics if not text else None if more else len(sizes)
    return TopicStanding(
        sorted(sizes, key=_longest), max(count, len(sizes)) if count is not None else None, counts, sums.age_s
    )
