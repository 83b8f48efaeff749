"""Demand for workers: what of each group waits to be started, for how long, and which workers run its messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emsworker.core.scaling import Demand
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements

_SQL = Statements(__name__)
_MOST_COUNTED = 10_000


@dataclass
class _Numbers:
    """Numbers of one group while they are read."""

    idle: bool = False
    unclaimed: int = 0
    running: int = 0
    waiting: int = 0
    retries: int = 0
    due: int = 0
    oldest_s: float = 0.0
    busy: int = 0
    threads: int = 1

    def demand(self) -> Demand:
        """Return the demand of the group; one that is paused starts nothing, so nothing of it waits for workers."""
        starts = 0 if self.idle else self.unclaimed + self.waiting + self.due
        lag = self.unclaimed + self.waiting + self.running + self.retries
        return Demand(lag, starts, self.oldest_s if starts else 0.0, self.running, self.busy, self.threads)


def read_demands(session: Session, group_ids: Sequence[int]) -> dict[int, Demand]:
    """Return the demand of each group; the work does not grow with the backlog."""
    if not group_ids:
        return {}
    found = {group_id: _Numbers() for group_id in group_ids}
    ids = {"group_ids": sorted(found)}
    packet = session.packet()
    for statement in (_SQL.list_backlogs, _SQL.list_claims, _SQL.list_busy):
        packet.add(statement, ids)
    packet.add(_SQL.count_threads)
    for group_id in sorted(found):
        packet.add(_SQL.count_retries, {"group_id": group_id, "limit": _MOST_COUNTED})
        packet.add(_SQL.count_due, {"group_id": group_id, "limit": _MOST_COUNTED})
    backlogs, claims, busy, threads, *retries = (result.rows for result in packet.send())
    places = _add_backlogs(found, backlogs, claims)
    of_worker = {name: int(count) for name, count in threads}
    for group_id, name, count in busy:
        numbers = found[group_id]
        numbers.busy += 1
        numbers.threads = max(numbers.threads, of_worker.get(name, 0), int(count))
    for group_id, every, due in zip(sorted(found), retries[::2], retries[1::2], strict=True):
        numbers = found[group_id]
        numbers.retries, numbers.due = int(every[0][0]), int(due[0][0])
        numbers.oldest_s = float(due[0][1])
    _add_ages(session, found, places)
    return {group_id: numbers.demand() for group_id, numbers in found.items()}


_Place = tuple[int, dict[str, int]]


def _add_backlogs(
    found: dict[int, _Numbers], backlogs: Sequence[tuple[int, ...]], claims: Sequence[tuple[object, ...]]
) -> list[_Place]:
    """Add what is unclaimed, waiting and running; return where the oldest that waits lies in each partition."""
    held = {(row[0], row[1], row[2]): (int(str(row[3])), row[4]) for row in claims}
    places: list[_Place] = []
    for group_id, topic_id, idle, partition, cursor, last in backlogs:
        numbers = found[group_id]
        numbers.idle = bool(idle)
        unclaimed = max(0, int(last) - int(cursor) + 1)
        waiting, first = held.get((group_id, partition, "waiting"), (0, None))
        numbers.unclaimed += unclaimed
        numbers.waiting += waiting
        numbers.running += held.get((group_id, partition, "start"), (0, None))[0]
        lowest = int(str(first)) if waiting and first is not None else int(cursor) if unclaimed else None
        if lowest is not None:
            places.append((group_id, {"topic_id": topic_id, "partition": partition, "offset": lowest}))
    return places


def _add_ages(session: Session, found: dict[int, _Numbers], places: Sequence[_Place]) -> None:
    if not places:
        return
    packet = session.packet()
    for _, place in places:
        packet.add(_SQL.get_age, place)
    for (group_id, _), result in zip(places, packet.send(), strict=True):
        age_s = float(result.rows[0][0]) if result.rows else 0.0
        found[group_id].oldest_s = max(found[group_id].oldest_s, age_s)
