"""Schedules of periodic tasks: declared by workers or created by users, fired by the beat from the table alone.

A slot's messages are written in the transaction that moves the schedule past it, under its row lock: after any crash
and with any number of beats, each slot is fired once. Its uid is made of the schedule's name and the slot, so even a
schedule that is deleted and declared again does not fire a slot twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from itertools import islice
from typing import Any

from emsworker.core.codec import decode_headers, encode_headers
from emsworker.core.ids import decode_key, new_uid
from emsworker.core.model import priority_of
from emsworker.core.priority import level_below
from emsworker.core.schedule import Declared, ScheduleRow, check_origin, due_slots, parse_timetable, slot_uid
from emsworker.core.times import utc
from emsworker.store.engine.schema import server_now
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements
from emsworker.store.stream.guards import hold_topic

_SQL = Statements(__name__)
_PRODUCER = "beat"
_COLUMNS = tuple(one.name for one in fields(Declared))
_ALL = 1 << 31


_MOST_SLOTS = 1000  # of one transaction, beyond those of the first schedule


@dataclass(frozen=True)
class Fired:
    """Outcome of :func:`fire`.

    Attributes:
        moved: schedules that were moved past their due slots.
        slots: messages that were written for them.
        damaged: schedules that cannot be read here, with the reason.
    """

    moved: int
    slots: int
    damaged: dict[str, str]


def declare(session: Session, schedules: Sequence[Declared]) -> None:
    """Insert or update the schedules of an app; existing ones keep their next slot, unless their timetable changed.

    Raises:
        ConfigError: a user has created one of that name at run time; nothing was changed.
    """

    def work(session: Session) -> None:
        now = server_now(session)
        for one in schedules:
            next_at = next(parse_timetable(one.spec, one.timezone).after(now))
            session.execute(_SQL.declare_schedule, vars(one) | {"next_at": next_at.replace(tzinfo=None)})
        check_names(session, [one.name for one in schedules])  # of locked rows: no user can create one any more

    session.transaction(work)


def check_names(session: Session, names: Sequence[str]) -> None:
    """Refuse names for an app's schedules that users have taken.

    Raises:
        ConfigError: a user has created one of that name at run time.
    """
    for (name,) in session.rows(_SQL.list_of_users, {"names": list(names)}) if names else ():
        check_origin(name, "user", "code")


def list_schedules(
    session: Session, prefix: str = "", tag: bytes | None = None, after: str = "", limit: int = _ALL
) -> list[ScheduleRow]:
    """List schedules by name.

    Args:
        prefix: with which their names begin.
        tag: of their calls.
        after: the name after which the page begins.
    """
    args = {"prefix": prefix, "tag": tag, "after": after, "limit": limit}
    return [_row(*columns) for columns in session.rows(_SQL.list_schedules, args)]


def _row(
    name: str, spec: str, timezone: str, catch_up: str, topic: str | None, next_at: str, last_at: str | None, *more: Any
) -> ScheduleRow:
    declared_at, origin, paused, task, tag = more
    times = utc(next_at), utc(last_at) if last_at else None, utc(declared_at)
    return ScheduleRow(name, spec, timezone, catch_up, topic, *times, origin, bool(paused), task, decode_key(tag))


def list_of_topic(session: Session, topic: str) -> list[tuple[Any, ...]]:
    """Return the rows of a topic's schedules, for :func:`take_over`."""
    return [tuple(row) for row in session.rows(_SQL.list_of_topic, {"topic": topic})]


def take_over(session: Session, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert schedules as another server has had them; of those declared here, the earlier next slot counts."""
    names = (*_COLUMNS, "next_at", "last_at", "origin", "paused")
    for row in rows:
        session.change(_SQL.take_over, dict(zip(names, row, strict=True)))


def delete(session: Session, name: str) -> bool:
    """Delete a schedule; returns false if there is none of that name."""
    return session.change(_SQL.delete_schedule, {"name": name}) == 1


def find_due(session: Session, limit: int) -> tuple[list[str], float | None]:
    """Return the names of schedules that are due, and the seconds until the next one; ``None`` if there is none."""
    rows = session.rows(_SQL.find_due, {"limit": limit})
    later = [float(seconds) for _, seconds in rows if float(seconds) > 0]
    return [name for name, seconds in rows if float(seconds) <= 0], min(later, default=None)


def move_back(session: Session) -> list[str]:
    """Compute next slots again that were computed while the server's clock was ahead, and are more than a period away.

    A slot that was fired then is not fired twice: its uid is the same.

    Returns:
        the names of those schedules.
    """
    moved = []
    for name, spec, timezone, next_at, now in session.rows(_SQL.list_future):
        try:
            first, second = islice(parse_timetable(spec, timezone).after(utc(now)), 2)
        except ValueError:
            continue  # one that cannot be read here, or that ends
        args = {"name": name, "was": next_at, "next_at": first.replace(tzinfo=None)}
        if utc(next_at) > second and session.change(_SQL.move_back, args):
            moved.append(name)
    return moved


def fire(session: Session, names: Sequence[str], grace_s: float) -> Fired:
    """Send the due slots of some schedules and move these on, in one transaction.

    After very many slots it leaves the others for the next call. A damaged schedule stops no other one.
    """

    def work(session: Session) -> Fired:
        session.begin()
        rows = session.rows(_SQL.lock_due, {"names": list(names)})
        if not rows:
            session.rollback()
            return Fired(0, 0, {})
        topics = _hold_topics(session, {row[4] for row in rows})
        packet, messages, damaged, moved = session.packet(), [], {}, 0
        for *columns, next_at, now in rows:
            one = Declared(*columns)
            if one.topic not in topics:  # deleted since it was found to be due
                continue
            try:
                times = parse_timetable(one.spec, one.timezone), utc(next_at), utc(now)
                slots, following = due_slots(*times, one.catch_up, grace_s)
            except ValueError as error:
                damaged[one.name] = str(error)
                continue
            messages += [_message(one, topics[one.topic], slot, slot_uid(one.name, slot)) for slot in slots]
            last_at = slots[-1].replace(tzinfo=None) if slots else None
            moves = {"name": one.name, "next_at": following.replace(tzinfo=None), "last_at": last_at}
            packet.add(_SQL.move_on, moves)
            moved += 1
            if len(messages) >= _MOST_SLOTS:
                break
        packet.insert_many(_SQL.insert_slots, _SQL.slot_row, messages)
        packet.commit()
        packet.send()
        return Fired(moved, len(messages), damaged)

    return session.retry_on_conflict(lambda: work(session))


def _hold_topics(session: Session, names: set[str]) -> dict[str, tuple[int, int]]:
    """Keep topics from being deleted; return the id and the priorities of those that exist."""
    found = {name: rows[0] for name in sorted(names) if (rows := session.rows(_SQL.get_topic, {"topic": name}))}
    return {name: (id_, levels) for name, (id_, levels) in found.items() if hold_topic(session, id_)}


def run_now(session: Session, name: str) -> bytes | None:
    """Send the call of a schedule once, now, beside its slots; return the message's uid.

    Returns:
        ``None`` if there is no such schedule, or its topic is deleted.
    """

    def work(session: Session) -> bytes | None:
        rows = session.rows(_SQL.get_call, {"name": name})
        if not rows:
            return None
        *columns, now = rows[0]
        one = Declared(*columns)
        topics = _hold_topics(session, {one.topic})
        if not topics:
            return None
        uid = new_uid()
        row = _message(one, topics[one.topic], utc(now), uid)
        packet = session.packet()
        packet.insert_many(_SQL.insert_slots, _SQL.slot_row, [row])
        packet.send()
        return uid

    return session.transaction(work)


def _level(priorities: int, headers: bytes) -> int:
    """Return the level of the priority in the call's headers, 0 if it has none."""
    priority = priority_of(decode_headers(headers))
    return level_below(priorities, priority) if priority else 0


def _message(one: Declared, topic: tuple[int, int], slot: datetime, uid: bytes) -> dict[str, Any]:
    """Return the row of a slot's message."""
    topic_id, priorities = topic
    return {
        "topic_id": topic_id,
        "due_at": slot.replace(tzinfo=None),
        "uid": uid,
        "key": one.key,
        "tag": one.tag,
        "headers": encode_headers(one.slot_headers(slot)),
        "body": one.body,
        "producer_id": _PRODUCER,
        "level": _level(priorities, one.headers),
    }
