"""Rate and concurrency limits of single tasks that share their group with others.

A claim is a range of messages, and a limit of one task must not hold up the others. So a worker that has claimed
messages of a limited task asks how many of them it may start, in one packet, and puts the others aside as retries with
no attempt charged, in the transaction in which it records the ends of others:

- What waits for the rate gets a time, one after another at that rate, and is claimed when its time has come. It asks
  again then, because nobody may have been there at its time; what comes new meanwhile is put behind it.
- What waits for a place gets a number in the queue of its task: a due time far in the future, in a day that belongs to
  the task, so that the index of due retries has the queue in its order. Whoever gives places back makes the next ones
  due. If a client dies instead, or a message enters the queue after the last place was given back, the beat does it.

A slot belongs to a client; it is free if the client has no valid lease.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from emsworker.core.flush import storable
from emsworker.core.limits import Limit
from emsworker.core.model import Claim, Failure
from emsworker.store.engine.session import Packet, Session
from emsworker.store.engine.sql import Statements
from emsworker.store.stream.guards import hold_group

_SQL = Statements(__name__)
_FIRST_DAY, _DAYS = datetime(3000, 1, 1), 2_000_000  # later than any due time, and before that of what is blocked
_DAY_US = 86_400_000_000
_CHUNK = 1000


@dataclass(frozen=True)
class Asked:
    """A request for permits of a task.

    Attributes:
        wanted: how many of its messages were claimed.
        is_back: they are retries: they have waited before.
        at_once: they run concurrently, not one after another.
    """

    task: str
    wanted: int
    is_back: bool
    at_once: bool


@dataclass(frozen=True)
class Granted:
    """The answer to it.

    Attributes:
        count: how many messages may be started.
        due: when each of the others is due.
        has_slot: places are taken, to be released.
        is_timed: the others wait for a time, not for a place.
    """

    count: int
    due: Sequence[datetime]
    has_slot: bool
    is_timed: bool


def declare(session: Session, group_id: int, limits: Mapping[str, Limit], free: Collection[str]) -> None:
    """Store the limits of some tasks of a group, and delete those of tasks that have none any more."""
    known = list_limits(session, group_id)
    changed = {task: limit for task, limit in limits.items() if known.get(task) != limit}
    freed = known.keys() & set(free)

    def work(session: Session) -> None:
        if hold_group(session, group_id):
            for task, limit in sorted(changed.items()):
                session.execute(_SQL.upsert_limit, _row(group_id, task, limit))
            for task in sorted(freed):
                session.execute(_SQL.delete_limit, {"group_id": group_id, "task": task})

    if changed or freed:
        session.transaction(work)
    for task in freed:
        while wake(session, group_id, task, _CHUNK) == _CHUNK:
            pass


def _row(group_id: int, task: str, limit: Limit) -> dict[str, Any]:
    return {
        "group_id": group_id,
        "task": task,
        "rate": limit.rate,
        "max_running": limit.max_running,
        "per_s": limit.per_s,
        "capacity": limit.capacity,
    }


def list_limits(session: Session, group_id: int) -> dict[str, Limit]:
    """Return the limits of a group's tasks, by name."""
    return {task: Limit(rate, most) for task, rate, most in session.rows(_SQL.list_limits, {"group_id": group_id})}


def acquire(session: Session, group_id: int, client_id: str, asked: Sequence[Asked]) -> list[Granted]:
    """Acquire permits for messages that are claimed, and places, which the client keeps until it releases them."""

    def attempt() -> list[Granted]:
        packet = session.packet()
        packet.begin()
        numbers = []
        for one in sorted(asked, key=lambda one: one.task):  # each client locks the rows in this order
            args = _args(group_id, one.task) | {"client_id": client_id, "wanted": one.wanted}
            packet.add_all(_ACQUIRE, args | {"is_back": int(one.is_back), "at_once": int(one.at_once)})
            numbers.append((one, packet.add(_SQL.get_granted)))
        packet.commit()
        results = packet.send()
        return [_granted(one, *results[number].rows[0]) for one, number in numbers]

    return session.retry_on_conflict(attempt)


_ACQUIRE = (
    _SQL.forget,
    _SQL.lock_limit,
    _SQL.refill,
    _SQL.read_tokens,
    _SQL.count_others,
    _SQL.find_queue,
    _SQL.count_places,
    _SQL.grant,
    _SQL.spend,
    _SQL.take_slot,
)


def _granted(asked: Asked, granted: Any, places: Any, queued: Any, until: Any, per_s: Any, most: Any) -> Granted:
    count, others = int(granted), range(asked.wanted - int(granted))
    has_slot = most is not None and count > 0
    if int(places) < asked.wanted:
        first = _first(asked.task)
        due = [first + timedelta(microseconds=(int(queued) + n) % _DAY_US) for n in others]
        return Granted(count, due, has_slot, False)
    begin = datetime.fromisoformat(until.decode() if isinstance(until, bytes) else str(until)) if others else _FIRST_DAY
    return Granted(count, [begin + timedelta(seconds=(n + 1) / float(per_s)) for n in others], has_slot, True)


def _first(task: str) -> datetime:
    """Return the first due time in the queue of a task; two tasks of a group with the same day wake each other."""
    return _FIRST_DAY + timedelta(days=zlib.crc32(task.encode("utf-8", "surrogatepass")) % _DAYS)


def _args(group_id: int, task: str) -> dict[str, Any]:
    first = _first(task)
    return {"group_id": group_id, "task": task, "first": first, "beyond": first + timedelta(days=1)}


@dataclass(frozen=True)
class Returned:
    """Permits and places of a claim that are given back.

    Attributes:
        asked: what was asked for.
        unstarted: permits that were not used.
        unwritten: messages that were to be put aside until a time, and were not.
        woken: how many messages that wait for a place are made due; ``None`` if there was no place.
    """

    asked: Asked
    unstarted: int
    unwritten: int
    woken: int | None


def release(session: Session, group_id: int, client_id: str, returned: Sequence[Returned]) -> None:
    """Give permits and places back, and make the next messages that wait for a place due."""

    def attempt() -> None:
        packet = session.packet()
        packet.begin()
        for one in returned:
            args = _args(group_id, one.asked.task) | {"client_id": client_id, "is_back": int(one.asked.is_back)}
            if one.unstarted or one.unwritten:
                packet.add(_SQL.refund, args | {"unstarted": one.unstarted, "unwritten": one.unwritten})
            if one.woken is not None:
                packet.add_all((_SQL.release, _SQL.wake), args | {"limit": one.woken})
        packet.commit()
        packet.send()

    session.retry_on_conflict(attempt)


def wake(session: Session, group_id: int, task: str, count: int) -> int:
    """Make the next messages that wait for a place of their task due; return how many."""
    return session.change(_SQL.wake, _args(group_id, task) | {"limit": count})


def add_postponed(packet: Packet, claim: Claim, postponed: Sequence[Failure]) -> None:
    """Append the putting aside of messages to the transaction of a flush."""
    where: dict[str, Any] = {"group_id": claim.group_id, "partition": claim.partition}
    rows = (
        where | {"offset": one.offset, "attempt": one.attempt, "due_at": one.due_at, "error": storable(one.error)}
        for one in sorted(postponed, key=lambda one: one.offset)
    )
    packet.insert_many(_SQL.upsert_postponed, _SQL.postponed_row, rows, _SQL.upsert_postponed_end)


def fill_places(session: Session) -> bool:
    """Make as many messages due as there are free places; return whether any task has a limit."""
    tasks = session.rows(_SQL.list_free, {"most": _CHUNK})
    if tasks:
        session.change(_SQL.sweep_slots)
    for group_id, task, free in tasks:
        if free > 0:
            wake(session, group_id, task, int(free))
    return bool(tasks)


def delete(session: Session, group_id: int) -> None:
    """Delete the limits and slots of a group's tasks, inside the transaction that deletes the group."""
    session.execute(_SQL.delete_limits, {"group_id": group_id})
    session.execute(_SQL.delete_slots, {"group_id": group_id})
