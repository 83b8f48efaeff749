"""Time series of groups, topics and the whole stream: samples that the beat takes, and charts made of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from emsworker.core.times import in_utc, utc
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Args, Statements

_SQL = Statements(__name__, where_group="")
_SOME = Statements(__name__, where_group="WHERE g.id IN %(group_ids)s")
_RATED = timedelta(minutes=1)
_COUNTS = ("unclaimed", "claimed", "waiting", "retries", "running", "dead", "lag")  # as the statements select them


@dataclass(frozen=True)
class Sample:
    """Numbers of a group at one moment; of a topic if ``group_id`` is 0, of the stream if ``topic_id`` is 0 too.

    Attributes:
        running: claims that are worked on.
        oldest_ms: the age of the oldest unfinished message, ``None`` if there is none.
        written: the last offsets of all partitions, summed up: it grows by one with each message.
        finished: offsets that the group has finished.
        skipped: offsets that the group skipped and never runs.
        kept: offsets that the topic keeps.
        topics, groups: the number of those that a topic, or the stream, consists of; of topics only those kept here.
        places: partitions, and groups x partitions, of the stream. All from ``skipped`` on is written to ``ems_latest``
            only.
    """

    topic_id: int
    group_id: int
    unclaimed: int
    claimed: int
    waiting: int
    retries: int
    running: int
    dead: int
    oldest_ms: int | None
    written: int
    finished: int
    skipped: int = 0
    kept: int = 0
    topics: int = 0
    groups: int = 0
    places: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """Topic id and group id."""
        return self.topic_id, self.group_id


@dataclass(frozen=True)
class SamplePoint:
    """Point of a chart: the highest values of the samples that it stands for.

    Attributes:
        at: the time of the last of them, in UTC. Samples that equal the one before are not written: its values hold.
        lag: unclaimed, claimed, waiting and retries together; running: claims that are worked on.
        oldest_s: the age of the oldest unfinished message in seconds, ``None`` if there is none.
        in_per_s: messages written each second since the point before; out_per_s: messages finished. ``None`` if it is
            not known: for the first point, and after a move of the cursor.
    """

    at: datetime
    unclaimed: int
    claimed: int
    waiting: int
    retries: int
    running: int
    dead: int
    lag: int
    oldest_s: float | None
    in_per_s: float | None
    out_per_s: float | None


def add_samples(session: Session, samples: Sequence[Sample], sampled_at: datetime) -> None:
    """Write samples of one moment, in as few statements as the server accepts.

    Args:
        sampled_at: the moment, by the server's clock.
    """
    when = {"sampled_at": sampled_at.replace(tzinfo=None)}
    packet = session.packet()
    packet.insert_many(_SQL.insert_samples, _SQL.sample_row, (asdict(sample) | when for sample in samples))
    if len(packet):
        packet.send()


def delete_old(session: Session, keep_s: float, limit: int) -> int:
    """Delete at most ``limit`` samples that are older than ``keep_s`` seconds; returns how many."""
    return session.change(_SQL.delete_old, {"keep_s": keep_s, "limit": limit})


def read_series(
    session: Session, topic_id: int, group_id: int, since: datetime, until: datetime, points: int
) -> list[SamplePoint]:
    """Return the samples of a time, thinned by the server to at most ``points``.

    Args:
        topic_id: 0 for the stream; group_id: 0 for the topic.
        since: the first moment; until: the moment after the last.
    """
    since, until = (in_utc(when).replace(tzinfo=None) for when in (since, until))
    step_us = max(1, math.ceil((until - since).total_seconds() * 1_000_000 / points))
    args = {"topic_id": topic_id, "group_id": group_id, "since": since, "until": until, "step_us": step_us}
    rows = _held(session, args)
    return [_point(row, before) for row, before in zip(rows, [None, *rows], strict=False)]


def _held(session: Session, args: Args) -> list[tuple[Any, ...]]:
    """Return the times and values of a series; where samples were taken without this one, those before hold."""
    packet = session.packet()
    for statement in (_SQL.read_series, _SQL.list_rounds, _SQL.read_before):
        packet.add(statement, args)
    own, rounds, before = (result.rows for result in packet.send())
    found: dict[int, tuple[Any, ...]] = {int(row[0]): row[1:] for row in own}
    gaps = {int(step): at for step, at in rounds if int(step) not in found}
    ends: dict[int, str] = {}  # of what holds in a gap: the time of the last sample of the step before
    last = None
    for step in sorted(found.keys() | gaps.keys()):
        if step in found:
            last = found[step][0]
        elif last is not None:
            ends[step] = last
    wanted = {**args, "times": sorted(set(ends.values()))}
    holding = {row[0]: row[1:] for row in (session.rows(_SQL.read_samples, wanted) if ends else ())}
    first = before[0] if before else None
    for step, at in gaps.items():
        values = holding.get(ends[step]) if step in ends else first
        if values is not None:
            found[step] = (at, *values)
    return [(utc(at), *values) for _, (at, *values) in sorted(found.items())]


def find_round(session: Session) -> datetime | None:
    """Return when samples were taken last, by the server's clock; ``None`` if none are kept."""
    rows = session.rows(_SQL.find_round)
    return utc(rows[0][0]) if rows else None


def read_latest(session: Session, group_ids: Collection[int] | None = None) -> dict[tuple[int, int], SamplePoint]:
    """Return what the latest samples say of each topic id and group id, with the rates of the minute before.

    Args:
        group_ids: only of these groups; ``None`` for all.
    """
    now = find_round(session)
    if now is None or (group_ids is not None and not group_ids):
        return {}
    then = now - _RATED
    args = {} if group_ids is None else {"group_ids": sorted(group_ids)}
    statement = _SQL.list_latest if group_ids is None else _SOME.list_latest
    later, earlier = (
        {row[:2]: row[2:] for row in session.rows(statement, {"at": at.replace(tzinfo=None), **args})}
        for at in (now, then)
    )
    return {
        place: _point((now, *row[1:]), (max(then, utc(earlier[place][0])), *earlier[place][1:]))
        for place, row in later.items()
        if place in earlier
    }


def _point(row: Sequence[Any], before: Sequence[Any] | None) -> SamplePoint:
    """Return the point of a row: time, counts, age, and running totals, from which its rates are computed."""
    oldest_ms = row[-3]
    in_per_s, out_per_s = (None, None) if before is None else _rates(row, before)
    return SamplePoint(
        at=row[0],
        **{name: int(row[number]) for number, name in enumerate(_COUNTS, 1)},
        oldest_s=None if oldest_ms is None else int(oldest_ms) / 1000,
        in_per_s=in_per_s,
        out_per_s=out_per_s,
    )


def _rates(row: Sequence[Any], before: Sequence[Any]) -> list[float | None]:
    seconds = (row[0] - before[0]).total_seconds()
    differences = [int(now) - int(then) for now, then in zip(row[-2:], before[-2:], strict=True)]
    return [one / seconds if one >= 0 and seconds > 0 else None for one in differences]
