"""Beat services that take samples of every group, for charts, and delete old ones.

A round costs what the lag of all groups costs: index dives for each cursor, and bounded counts. Its rows are written in
one statement: one for each group that has changed, to the series and over the group's latest one. 72 hours of a group
that is always busy take 25,920 rows, of an idle one 432.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from emsworker.admin.monitoring import GroupLag, read_lags
from emsworker.core.config import Settings
from emsworker.core.process.clock import ticks
from emsworker.store import Session, server_now, topics
from emsworker.store.inspect import latest, monitoring, samples

_MOST_COUNTED = 10_000  # retries, and dead letters, of each group
_SHARE = 10  # sampling takes at most a tenth of the time
_CHUNK = 2000
_OFF_S = 60.0
_REPEAT_S = 600.0  # a sample that says nothing new
_PRUNE_BEATS = 30


class TakeSamples:
    """Writes a sample of each group and each topic that has changed, and always one of the stream.

    What has not changed is written seldom, so that a sample is there although old ones are deleted. The stream's tells
    that samples were taken: another leader's round in between, which this beat does not know, is found by it.
    """

    def __init__(self) -> None:
        self._round_at: datetime | None = None
        self._written: dict[tuple[int, int], tuple[samples.Sample, datetime]] = {}

    def __call__(self, session: Session, settings: Settings) -> float:
        """Take samples and return the pause."""
        if not settings.sample_s:
            return _OFF_S
        began, now = ticks(), server_now(session)
        lags = read_lags(session, _MOST_COUNTED)
        extents = monitoring.list_extents(session)
        kept_here = {topic.id for topic in topics.list_topics(session) if topic.server is None}
        taken = list(samples_of(lags, extents, kept_here))
        places = set(self._written)
        if samples.find_round(session) != self._round_at:
            self._written, places = {}, latest.list_places(session)
        oldest = now - timedelta(seconds=min(_REPEAT_S, settings.sample_keep_s / 2))
        news = [sample for sample in taken if self._is_news(sample, oldest)]
        samples.add_samples(session, news, now)
        latest.replace_rows(session, news, now)
        latest.delete_rows(session, places - {sample.place for sample in taken})
        self._round_at = now
        kept = {sample.place: self._written[sample.place] for sample in taken if sample.place in self._written}
        self._written = kept | {sample.place: (sample, now) for sample in news}
        return max(settings.sample_s, _SHARE * (ticks() - began))

    def _is_news(self, sample: samples.Sample, oldest: datetime) -> bool:
        """Return whether a sample says something, or its predecessor was written before ``oldest``."""
        last, at = self._written.get(sample.place, (None, oldest))
        return not sample.topic_id or sample != last or at <= oldest


def samples_of(
    lags: Iterable[GroupLag], extents: Iterable[monitoring.Extent], kept_here: Collection[int]
) -> Iterator[samples.Sample]:
    """Yield the samples of groups, of topics, and of the stream.

    Args:
        extents: of all partitions.
        kept_here: the ids of the topics that this server keeps.
    """
    written, kept, places = Counter[int](), Counter[int](), 0
    for extent in extents:
        places += 1
        written[extent.topic_id] += extent.end - 1
        kept[extent.topic_id] += extent.end - extent.log_start
    groups = list[samples.Sample]()
    for lag in lags:
        groups.append(_sample(lag, written[lag.topic.id]))
        places += len(lag.partitions)
    by_topic: dict[int, list[samples.Sample]] = {topic_id: [] for topic_id in written}
    for sample in groups:
        by_topic.setdefault(sample.topic_id, []).append(sample)
    totals = [
        replace(_total(topic_id, own, written[topic_id]), kept=kept[topic_id], topics=int(topic_id in kept_here))
        for topic_id, own in by_topic.items()
    ]
    yield from groups
    yield from totals
    yield replace(_total(0, groups, written.total()), topics=sum(one.topics for one in totals), places=places)


def _sample(lag: GroupLag, written: int) -> samples.Sample:
    unfinished = lag.claimed + lag.waiting + lag.retries
    passed = sum(one.cursor - 1 for one in lag.partitions)
    return samples.Sample(
        lag.topic.id,
        lag.group.id,
        unclaimed=lag.unclaimed,
        claimed=lag.claimed,
        waiting=lag.waiting,
        retries=lag.retries,
        running=lag.running,
        dead=lag.dead,
        oldest_ms=None if lag.oldest_age_s is None else max(0, round(lag.oldest_age_s * 1000)),
        written=written,
        finished=max(0, passed - unfinished),
        skipped=lag.skipped,
    )


def _total(topic_id: int, parts: list[samples.Sample], written: int) -> samples.Sample:
    def total(name: str) -> int:
        return sum(getattr(part, name) for part in parts)

    ages = [part.oldest_ms for part in parts if part.oldest_ms is not None]
    return samples.Sample(
        topic_id,
        0,
        unclaimed=total("unclaimed"),
        claimed=total("claimed"),
        waiting=total("waiting"),
        retries=total("retries"),
        running=total("running"),
        dead=total("dead"),
        oldest_ms=max(ages, default=None),
        written=written,
        finished=total("finished"),
        skipped=total("skipped"),
        groups=len(parts),
    )


def prune_samples(session: Session, settings: Settings) -> float:
    """Delete samples that are older than ``sample_keep_s``, a chunk at a time; no pause while there are more."""
    deleted = samples.delete_old(session, settings.sample_keep_s, _CHUNK)
    return 0.0 if deleted == _CHUNK else _PRUNE_BEATS * settings.beat_s
