"""Lag of groups, length of partitions, claims per client, and recent attempts. No statement scans all messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emsworker.core.counted import AtLeast
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Sql, Statements

_ALL = Statements(__name__, where_c="", and_c="", where_group="", and_group="", where_topic="")
_SOME = Statements(
    __name__,
    where_c="WHERE c.group_id IN %(group_ids)s ",
    and_c="AND c.group_id IN %(group_ids)s ",
    where_group="WHERE group_id IN %(group_ids)s ",
    and_group="AND group_id IN %(group_ids)s ",
    where_topic="WHERE p.topic_id IN %(topic_ids)s ",
)


@dataclass(frozen=True)
class PartitionLag:
    """Position and backlog of one group in one partition.

    Attributes:
        last_offset: the last offset of the partition, 0 if it never had one.
        cursor: the next offset that the group has not claimed.
        unclaimed: offsets from the cursor to the high watermark.
        claimed: offsets that live clients hold and have not finished.
        waiting: claimed offsets whose client has stopped or died, and that wait for another client.
        retries: messages that wait for their next attempt, or run in it.
        dead: dead letters.
        lowest: the lowest unfinished offset, or ``None`` if all is done.
        skipped: offsets that the group never runs, because of its policy, a reset, or retention.
    """

    group_id: int
    partition: int
    last_offset: int
    cursor: int
    unclaimed: int
    claimed: int
    waiting: int
    retries: int
    dead: int
    lowest: int | None
    skipped: int


@dataclass(frozen=True)
class Extent:
    """Length of one partition: ``log_start`` is its first offset, ``end`` one past its last."""

    topic_id: int
    partition: int
    log_start: int
    end: int


def list_lags(
    session: Session, most: int | None = None, group_ids: Collection[int] | None = None
) -> list[PartitionLag]:
    """Read the lag of groups in every partition, in one or two packets.

    Args:
        most: count at most this many retries, and dead letters, of each group, so that the cost does not grow with
            them; those that were counted so far are :class:`~emsworker.core.counted.AtLeast`. ``None`` counts all.
        group_ids: only of these groups; ``None`` for all.
    """
    if group_ids is not None and not group_ids:
        return []
    if most is not None:
        return _list_bounded(session, most, group_ids)
    sql, args = _of(group_ids)
    packet = session.packet()
    for statement in (sql.list_positions, sql.count_claimed, sql.count_retries, sql.count_dead):
        packet.add(statement, args)
    positions, claimed, retries, dead = (result.rows for result in packet.send())
    retries_by = {(row[0], row[1]): (int(row[2]), int(row[3])) for row in retries}
    return _lags(positions, claimed, retries_by, {(row[0], row[1]): int(row[2]) for row in dead})


def _of(group_ids: Collection[int] | None) -> tuple[Statements, dict[str, Any]]:
    return (_ALL, {}) if group_ids is None else (_SOME, {"group_ids": sorted(group_ids)})


def _list_bounded(session: Session, most: int, group_ids: Collection[int] | None) -> list[PartitionLag]:
    sql, args = _of(group_ids)
    packet = session.packet()
    packet.add(sql.list_positions_and_more, args)
    packet.add(sql.count_claimed, args)
    positions, claimed = (result.rows for result in packet.send())
    first_retry = {(row[0], row[1]): int(row[6]) for row in positions if row[6] is not None}
    retrying, dying = ({group_id for group_id, _ in first_retry}, {row[0] for row in positions if row[7]})
    places = [(row[0], row[1]) for row in positions]
    retries = _count_some(session, _ALL.count_some_retries, sorted(retrying), most, places)
    # One that has ended between the two packets is still counted, as one.
    retries_by = {place: (_one_or_more(retries.get(place, 0)), offset) for place, offset in first_retry.items()}
    dead_by = _count_some(session, _ALL.count_some_dead, sorted(dying), most, places)
    return _lags([row[:6] for row in positions], claimed, retries_by, dead_by)


def _one_or_more(count: int) -> int:
    return count or (AtLeast(1) if isinstance(count, AtLeast) else 1)


def _count_some(
    session: Session, statement: Sql, group_ids: Sequence[int], most: int, places: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], int]:
    """Count the first rows of each group by partition; of none of ``places`` it is known then that it has no more."""
    if not group_ids:
        return {}
    packet = session.packet()
    for group_id in group_ids:
        packet.add(statement, {"group_id": group_id, "most": most})
    found: dict[tuple[int, int], int] = {}
    for group_id, result in zip(group_ids, packet.send(), strict=True):
        counts = {(group_id, int(partition)): int(count) for partition, count in result.rows}
        if sum(counts.values()) >= most:
            counts = {place: AtLeast(counts.get(place, 0)) for place in places if place[0] == group_id}
        found |= counts
    return found


def count_running(session: Session, group_ids: Collection[int] | None = None) -> dict[int, int]:
    """Return the number of claims that clients work on now, by group.

    Args:
        group_ids: only of these groups; ``None`` for all.
    """
    if group_ids is not None and not group_ids:
        return {}
    sql, args = _of(group_ids)
    return {int(group_id): int(count) for group_id, count in session.rows(sql.count_running, args)}


def held_back(session: Session) -> set[int]:
    """Return the groups of which claims wait for a permit of a limit: somebody works for them."""
    return {int(group_id) for (group_id,) in session.rows(_ALL.list_held_back)}


def _lags(
    positions: Sequence[tuple[Any, ...]],
    claimed: Sequence[tuple[Any, ...]],
    retries_by: Mapping[tuple[int, int], tuple[int, int]],
    dead_by: Mapping[tuple[int, int], int],
) -> list[PartitionLag]:
    claimed_by = {(row[0], row[1]): (int(row[2]), int(row[3]), int(row[4])) for row in claimed}
    lags = []
    for group_id, partition, _log_start, cursor, last_offset, skipped in positions:
        key = (group_id, partition)
        unclaimed = max(0, int(last_offset) - int(cursor) + 1)
        in_claims, first_claimed, held = claimed_by.get(key, (0, None, 0))
        in_retry, first_retry = retries_by.get(key, (0, None))
        open_offsets = [first_claimed if in_claims else None, first_retry, int(cursor) if unclaimed else None]
        lowest = min((offset for offset in open_offsets if offset is not None), default=None)
        counts = (unclaimed, held, in_claims - held, in_retry, dead_by.get(key, 0))
        lags.append(PartitionLag(group_id, partition, int(last_offset), int(cursor), *counts, lowest, int(skipped)))
    return lags


def ages_of(session: Session, places: Sequence[tuple[int, int, int]]) -> list[float | None]:
    """Return the age in seconds of the first message at or after each place (topic id, partition, offset)."""
    if not places:
        return []
    packet = session.packet()
    for topic_id, partition, offset in places:
        packet.add(_ALL.get_age, {"topic_id": topic_id, "partition": partition, "offset": offset})
    return [float(result.rows[0][0]) if result.rows else None for result in packet.send()]


def list_extents(session: Session, topic_ids: Collection[int] | None = None) -> list[Extent]:
    """Return the extents of partitions.

    Args:
        topic_ids: only of these topics; ``None`` for all.
    """
    if topic_ids is None:
        rows = session.rows(_ALL.list_extents)
    else:
        rows = session.rows(_SOME.list_extents, {"topic_ids": sorted(topic_ids)}) if topic_ids else ()
    return [Extent(row[0], row[1], int(row[2]), int(row[3])) for row in rows]


_SHORT, _SAMPLE = 1000, 500


def count_messages(session: Session, extents: Sequence[Extent]) -> list[int]:
    """Count the messages of each partition, without tombstones and cancelled messages.

    The count is exact if the partition has at most 1000 offsets, or only messages, or none; otherwise it is estimated
    from a sample, so that the cost does not grow with the partition.
    """
    filled = [one for one in extents if one.end > one.log_start]  # of many topics, most are often empty
    if not filled:
        return [0] * len(extents)
    packet = session.packet()
    for one in filled:
        args: dict[str, Any] = {"topic_id": one.topic_id, "partition": one.partition, "from_offset": one.log_start}
        if one.end - one.log_start <= _SHORT:
            packet.add(_ALL.count_messages, args)
        else:
            packet.add(_ALL.count_sample, args | {"offsets": _spread(one.log_start, one.end)})
    counts: dict[Extent, int] = {}
    for one, result in zip(filled, packet.send(), strict=True):
        count, length = int(result.rows[0][0]), one.end - one.log_start
        counts[one] = count if length <= _SHORT else round(length * count / _SAMPLE)
    return [counts.get(one, 0) for one in extents]


def _spread(log_start: int, end: int) -> list[int]:
    """Return offsets spread evenly over a partition."""
    return [log_start + number * (end - log_start) // _SAMPLE for number in range(_SAMPLE)]


def mean_sizes(session: Session, extents: Sequence[Extent]) -> list[float]:
    """Return the mean size in bytes of the messages among the last offsets of each partition, 0 if there are none."""
    filled = [one for one in extents if one.end > one.log_start]
    if not filled:
        return [0.0] * len(extents)
    packet = session.packet()
    for extent in filled:
        args = {"topic_id": extent.topic_id, "partition": extent.partition, "from_offset": extent.log_start}
        packet.add(_ALL.get_mean_size, args)
    sizes = {one: float(result.rows[0][0] or 0) for one, result in zip(filled, packet.send(), strict=True)}
    return [sizes.get(one, 0.0) for one in extents]


def claims_by_client(session: Session) -> dict[str, dict[int, int]]:
    """Return the number of claims that each client holds now, by group."""
    counts: dict[str, dict[int, int]] = {}
    for client_id, group_id, count in session.rows(_ALL.count_by_client):
        counts.setdefault(client_id, {})[group_id] = int(count)
    return counts
