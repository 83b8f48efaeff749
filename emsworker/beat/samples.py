"""Beat services that take samples of every group, for charts, and delete old ones.

A sample costs what the lag of all groups costs: index dives for each cursor, and bounded counts. Its rows are written
in one statement. At 1,000 groups that is 1,000 rows every 10 seconds; 72 hours of one group take 25,920 rows.
"""

from __future__ import annotations

from collections.abc import Iterable

from emsworker.admin.monitoring import GroupLag, read_lags
from emsworker.core.config import Settings
from emsworker.core.process.clock import ticks
from emsworker.store.engine.schema import server_now
from emsworker.store.engine.session import Session
from emsworker.store.inspect import monitoring
from emsworker.store.inspect import samples as store
from emsworker.store.inspect.samples import Sample

_MOST_COUNTED = 10_000  # retries, and dead letters, of each group
_SHARE = 10  # sampling takes at most a tenth of the time
_CHUNK = 2000
_OFF_S = 60.0
_PRUNE_BEATS = 10


def take_samples(session: Session, settings: Settings) -> float:
    """Write one sample for each group, each topic and the stream."""
    if not settings.sample_s:
        return _OFF_S
    began, now = ticks(), server_now(session)
    lags = read_lags(session, _MOST_COUNTED)
    written: dict[int, int] = {}
    for extent in monitoring.list_extents(session):
        written[extent.topic_id] = written.get(extent.topic_id, 0) + extent.end - 1
    store.add_samples(session, list(samples_of(lags, written)), now)
    return max(settings.sample_s, _SHARE * (ticks() - began))


def samples_of(lags: Iterable[GroupLag], written: dict[int, int]) -> Iterable[Sample]:
    """Yield the samples of groups, of topics, and of the stream.

    Args:
        written: the last offsets of each topic's partitions, summed up.
    """
    groups = [_sample(lag, written.get(lag.topic.id, 0)) for lag in lags]
    by_topic: dict[int, list[Sample]] = {topic_id: [] for topic_id in written}
    for sample in groups:
        by_topic.setdefault(sample.topic_id, []).append(sample)
    yield from groups
    for topic_id, own in by_topic.items():
        yield _total(topic_id, own, written.get(topic_id, 0))
    yield _total(0, groups, sum(written.values()))


def _sample(lag: GroupLag, written: int) -> Sample:
    unfinished = lag.claimed + lag.waiting + lag.retries
    passed = sum(one.cursor - 1 for one in lag.partitions)
    return Sample(
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
    )


def _total(topic_id: int, parts: list[Sample], written: int) -> Sample:
    def total(name: str) -> int:
        return sum(getattr(part, name) for part in parts)

    ages = [part.oldest_ms for part in parts if part.oldest_ms is not None]
    return Sample(
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
    )


def prune_samples(session: Session, settings: Settings) -> float:
    """Delete samples that are older than ``sample_keep_s``, a chunk at a time; no pause while there are more."""
    deleted = store.delete_old(session, settings.sample_keep_s, _CHUNK)
    return 0.0 if deleted == _CHUNK else _PRUNE_BEATS * settings.beat_s
