"""Time series of groups, topics and the whole stream: samples that the beat takes, and charts made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements, utc

_SQL = Statements(__name__)
_COUNTS = ("unclaimed", "claimed", "waiting", "retries", "running", "dead", "lag")  # as the statements select them


@dataclass(frozen=True)
class Sample:
    """Numbers of a group at one moment; of a topic if ``group_id`` is 0, of the stream if ``topic_id`` is 0 too.

    Attributes:
        running: claims that are worked on.
        oldest_ms: the age of the oldest unfinished message, ``None`` if there is none.
        written: the last offsets of all partitions, summed up: it grows by one with each message.
        finished: offsets that the group has finished.
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


@dataclass(frozen=True)
class SamplePoint:
    """Point of a chart: the highest values of the samples that it stands for.

    Attributes:
        at: the time of the last of them, in UTC.
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
    since, until = (when.astimezone(UTC).replace(tzinfo=None) for when in (since, until))
    step_us = max(1, math.ceil((until - since).total_seconds() * 1_000_000 / points))
    args = {"topic_id": topic_id, "group_id": group_id, "since": since, "until": until, "step_us": step_us}
    rows = [row[1:] for row in session.rows(_SQL.read_series, args)]
    return [_point(row, before) for row, before in zip(rows, [None, *rows], strict=False)]


def read_latest(session: Session) -> dict[tuple[int, int], SamplePoint]:
    """Return the latest sample of each topic id and group id, with the rates of about a minute before it."""
    ((latest, before),) = session.rows(_SQL.find_rounds)
    if latest is None:
        return {}
    now, then = (
        {row[:2]: row[2:] for row in session.rows(_SQL.list_round, {"sampled_at": at})} for at in (latest, before)
    )
    return {place: _point(row, then.get(place)) for place, row in now.items()}


def _point(row: Sequence[Any], before: Sequence[Any] | None) -> SamplePoint:
    """Return the point of a row: time, counts, age, and running totals, from which its rates are computed."""
    oldest_ms = row[-3]
    in_per_s, out_per_s = (None, None) if before is None else _rates(row, before)
    return SamplePoint(
        at=utc(row[0]),
        **{name: int(row[number]) for number, name in enumerate(_COUNTS, 1)},
        oldest_s=None if oldest_ms is None else int(oldest_ms) / 1000,
        in_per_s=in_per_s,
        out_per_s=out_per_s,
    )


def _rates(row: Sequence[Any], before: Sequence[Any]) -> list[float | None]:
    seconds = (utc(row[0]) - utc(before[0])).total_seconds()
    differences = [int(now) - int(then) for now, then in zip(row[-2:], before[-2:], strict=True)]
    return [one / seconds if one >= 0 and seconds > 0 else None for one in differences]
