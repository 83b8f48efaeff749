"""Latest samples, ranked: those of the groups with the most lag are read without looking at the others."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements
from emsworker.store.inspect.samples import Sample

_SQL = Statements(__name__, order="ORDER BY l.length DESC ")
_IDLE = Statements(__name__, order="")  # all are of one length, which MariaDB would sort
_LONGEST = (1 << 64) - 1
Place = tuple[int, int]


class GroupChoice(StrEnum):
    """Groups by what they do: ``idle`` has nothing to do, ``waiting`` has, and ``paused`` may not."""

    PAUSED = "paused"
    IDLE = "idle"
    WAITING = "waiting"


class StreamSums(NamedTuple):
    """Sums over all groups, ``age_s`` seconds old; ``places`` are the partitions, and groups x partitions."""

    age_s: float
    lag: int
    running: int
    retries: int
    dead: int
    oldest_s: float | None
    topics: int
    groups: int
    places: int


class GroupNumbers(NamedTuple):
    """A group's latest numbers."""

    topic_id: int
    group_id: int
    unclaimed: int
    claimed: int
    waiting: int
    retries: int
    running: int
    dead: int
    skipped: int
    oldest_ms: int | None
    written: int


class TopicLength(NamedTuple):
    """The offsets that a topic keeps, and the number of its groups."""

    topic_id: int
    kept: int
    groups: int


def replace_rows(session: Session, samples: Sequence[Sample], sampled_at: datetime) -> None:
    """Write samples over those of before.

    Args:
        sampled_at: their moment, by the server's clock.
    """
    rows = sorted(samples, key=lambda sample: sample.place)  # two leaders for a moment lock rows in one order
    values = (asdict(one) | _kind_of(one) | {"sampled_at": sampled_at.replace(tzinfo=None)} for one in rows)
    packet = session.packet()
    packet.insert_many(_SQL.replace_rows, _SQL.row, values)
    if len(packet):
        packet.send()


def _kind_of(sample: Sample) -> dict[str, object]:
    if sample.group_id:
        return {"kind": "group", "length": sample.unclaimed + sample.claimed + sample.waiting + sample.retries}
    return {"kind": "topic", "length": sample.kept} if sample.topic_id else {"kind": "stream", "length": sample.places}


def list_places(session: Session) -> set[Place]:
    """Return the topic id and group id of every row."""
    return {(int(topic_id), int(group_id)) for topic_id, group_id in session.rows(_SQL.list_places)}


def delete_rows(session: Session, places: Collection[Place]) -> None:
    """Delete the rows of groups and topics that are gone."""
    packet = session.packet()
    for topic_id, group_id in sorted(places):
        packet.add(_SQL.delete_row, {"topic_id": topic_id, "group_id": group_id})
    if len(packet):
        packet.send()


def get_stream(session: Session) -> StreamSums | None:
    """Return the sums over all groups; ``None`` if no sample was ever taken."""
    rows = session.rows(_SQL.get_stream)
    if not rows:
        return None
    age_s, lag, running, retries, dead, oldest_ms, *counts = rows[0]
    oldest_s = None if oldest_ms is None else int(oldest_ms) / 1000
    return StreamSums(float(age_s), int(lag), int(running), int(retries), int(dead), oldest_s, *map(int, counts))


def list_groups(session: Session, limit: int, text: str = "", choice: GroupChoice | None = None) -> list[GroupNumbers]:
    """Return the latest numbers of groups, those with the most lag first.

    Args:
        limit: the maximum number of rows.
        text: only groups whose ``topic/group`` contains it.
        choice: only such groups.
    """
    args = {
        "shortest": 1 if choice is GroupChoice.WAITING else 0,
        "longest": 0 if choice is GroupChoice.IDLE else _LONGEST,
        "paused": [0, 1] if choice is None else [int(choice is GroupChoice.PAUSED)],
    }
    statement = _IDLE.list_groups if choice is GroupChoice.IDLE else _SQL.list_groups
    rows = session.rows(statement, args | {"text": text, "limit": limit})
    return [GroupNumbers(*row) for row in rows]


def list_topics(session: Session, limit: int, text: str = "") -> list[TopicLength]:
    """Return topics, those that keep the most offsets first.

    Args:
        limit: the maximum number of rows.
        text: only topics whose name contains it.
    """
    return [TopicLength(*row) for row in session.rows(_SQL.list_topics, {"text": text, "limit": limit})]
