"""Schedules of periodic tasks: declared by workers, fired by the beat from the table alone.

A slot's messages are written in the transaction that moves the schedule past it, under its row lock: after any crash
and with any number of beats, each slot is fired once. Its uid is made of the schedule's name and the slot, so even a
schedule that is deleted and declared again does not fire a slot twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from emsworker.core.codec import decode_headers, encode_headers
from emsworker.core.ids import new_uid
from emsworker.core.model import SLOT_HEADER, priority_of
from emsworker.core.priority import level_below
from emsworker.core.schedule import Declared, due_slots, parse_timetable
from emsworker.core.times import utc
from emsworker.store.engine.schema import server_now
from emsworker.store.engine.session import Packet, Session
from emsworker.store.engine.sql import Statements
from emsworker.store.stream.guards import hold_topic

_SQL = Statements(__name__)
_PRODUCER = "beat"


@dataclass(frozen=True)
class ScheduleRow:
    """A schedule in a list; times are UTC."""

    name: str
    spec: str
    timezone: str
    catch_up: str
    topic: str | None
    next_at: datetime
    last_at: datetime | None
    declared_at: datetime


def declare(session: Session, schedules: Sequence[Declared]) -> None:
    """Insert or update schedules; existing ones keep their next slot, unless their timetable changed."""

    def work(session: Session) -> None:
        now = server_now(session)
        for one in schedules:
            next_at = next(parse_timetable(one.spec, one.timezone).after(now))
            session.execute(_SQL.declare_schedule, vars(one) | {"next_at": next_at.replace(tzinfo=None)})

    session.transaction(work)


def list_schedules(session: Session) -> list[ScheduleRow]:
    """List all schedules by name."""
    return [
        ScheduleRow(
            name, spec, timezone, catch_up, topic, utc(next_at), utc(last_at) if last_at else None, utc(declared_at)
        )
        for name, spec, timezone, catch_up, topic, next_at, last_at, declared_at in session.rows(_SQL.list_schedules)
    ]


def list_of_topic(session: Session, topic: str) -> list[tuple[Any, ...]]:
    """Return the rows of a topic's schedules, for :func:`take_over`."""
    return [tuple(row) for row in session.rows(_SQL.list_of_topic, {"topic": topic})]


def take_over(session: Session, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert schedules as another server has had them; of those declared here, the earlier next slot counts."""
    names = ("name", "spec", "timezone", "catch_up", "topic", "key", "headers", "body", "next_at", "last_at")
    for row in rows:
        session.change(_SQL.take_over, dict(zip(names, row, strict=True)))


def delete(session: Session, name: str) -> bool:
    """Delete a schedule; returns false if there is none of that name."""
    return session.change(_SQL.delete_schedule, {"name": name}) == 1


def find_next(session: Session) -> list[tuple[str, float]]:
    """List schedules and the seconds until their next slot (negative if it is late), the earliest first."""
    return [(name, float(seconds)) for name, seconds in session.rows(_SQL.find_next)]


def move_back(session: Session) -> list[str]:
    """Compute next slots again that are further away than a period, because the server's clock was ahead.

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


def fire(session: Session, name: str, grace_s: float) -> int:
    """Send the due slots of a schedule and move it on, in one transaction; returns how many slots were fired.

    Raises:
        ValueError: its timetable cannot be read here.
    """

    def work(session: Session) -> int:
        session.begin()
        rows = session.rows(_SQL.lock_due, {"name": name})
        if not rows:
            session.rollback()
            return 0
        spec, timezone, catch_up, name_of_topic, key, headers, body, next_at, now = rows[0]
        topic = session.rows(_SQL.get_topic, {"topic": name_of_topic})
        if not topic or not hold_topic(session, topic[0][0]):  # deleted since it was found to be due
            session.rollback()
            return 0
        topic_id, priorities = topic[0]
        timetable = parse_timetable(spec, timezone)
        slots, following = due_slots(timetable, utc(next_at), utc(now), catch_up, grace_s)
        packet = session.packet()
        call = {"topic_id": topic_id, "key": key, "body": body, "level": _level(priorities, headers)}
        _add_slots(packet, name, slots, call, headers)
        last_at = slots[-1].replace(tzinfo=None) if slots else None
        packet.add(_SQL.move_on, {"name": name, "next_at": following.replace(tzinfo=None), "last_at": last_at})
        packet.commit()
        packet.send()
        return len(slots)

    return session.retry_on_conflict(lambda: work(session))


def run_now(session: Session, name: str) -> bytes | None:
    """Send the call of a schedule once, now, beside its slots; return the message's uid.

    Returns:
        ``None`` if there is no such schedule, or its topic is deleted.
    """

    def work(session: Session) -> bytes | None:
        rows = session.rows(_SQL.get_call, {"name": name})
        if not rows or not hold_topic(session, rows[0][0]):
            return None
        topic_id, priorities, key, headers, body, now = rows[0]
        uid = new_uid()
        slot = {SLOT_HEADER: utc(now).isoformat()}
        row = {
            "topic_id": topic_id,
            "key": key,
            "body": body,
            "level": _level(priorities, headers),
            "due_at": utc(now).replace(tzinfo=None),
            "uid": uid,
            "headers": encode_headers({**decode_headers(headers), **slot}),
            "producer_id": _PRODUCER,
        }
        packet = session.packet()
        packet.insert_many(_SQL.insert_slots, _SQL.slot_row, [row])
        packet.send()
        return uid

    return session.transaction(work)


def _level(priorities: int, headers: bytes) -> int:
    """Return the level of the priority in the call's headers, 0 if it has none."""
    priority = priority_of(decode_headers(headers))
    return level_below(priorities, priority) if priority else 0


def _add_slots(packet: Packet, name: str, slots: Sequence[datetime], call: dict[str, Any], headers: bytes) -> None:
    common = decode_headers(headers)
    rows = (
        call
        | {
            "due_at": slot.replace(tzinfo=None),
            "uid": slot_uid(name, slot),
            "headers": encode_headers({**common, SLOT_HEADER: slot.isoformat()}),
            "producer_id": _PRODUCER,
        }
        for slot in slots
    )
    packet.insert_many(_SQL.insert_slots, _SQL.slot_row, rows)


def slot_uid(name: str, slot: datetime) -> bytes:
    """Return the uid of a slot: deterministic, and sorting by time as every uid does."""
    tail = bytearray(hashlib.sha256(f"{name} {slot.isoformat()}".encode()).digest()[:10])
    tail[0] = 0x70 | tail[0] & 0x0F
    tail[2] = 0x80 | tail[2] & 0x3F
    return int(slot.timestamp() * 1000).to_bytes(6, "big") + bytes(tail)
