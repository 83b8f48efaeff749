"""Timetables of periodic tasks: cron expressions in a time zone, and intervals; pure, in UTC on both sides.

Cron has the semantics of Debian's cron (by cronsim): a job at a set hour that the change to summer time skips runs
right after the gap, and a job in the hour that occurs twice runs once; a job for every n minutes runs by elapsed time.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from emsworker.core.codec import decode_headers
from emsworker.core.errors import ConfigError, Problem
from emsworker.core.model import EXPIRES_HEADER, SLOT_HEADER

CATCH_UP = ("last", "all", "none")
MOST_SLOTS = 1000
"""Maximum number of missed slots that are caught up; they are the newest ones."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WINDOW = timedelta(days=1)
_EVERY = "every "


class Timetable(Protocol):
    """Series of times."""

    def after(self, when: datetime) -> Iterator[datetime]:
        """Yield the slots later than ``when``, in order, in UTC."""
        ...


@dataclass(frozen=True)
class Interval:
    """Fixed interval in seconds, counted from 1970, so that all processes agree on the slots."""

    seconds: float

    def __post_init__(self) -> None:
        if not 1 <= self.seconds <= 366 * 86400:
            raise ValueError(f"every {self.seconds:g} s: an interval lies between a second and a year")

    def after(self, when: datetime) -> Iterator[datetime]:
        """Yield the slots later than ``when``, in order, in UTC."""
        step = timedelta(seconds=self.seconds)
        number = (when - _EPOCH) // step
        while True:
            number += 1
            yield _EPOCH + number * step


@dataclass(frozen=True)
class Cron:
    """Cron expression of five fields, or six with the seconds first, in a time zone."""

    expression: str
    zone: ZoneInfo

    def __post_init__(self) -> None:
        try:
            slot = next(CronSim(self.expression, datetime.now(UTC)), None)
        except CronSimError as error:
            raise ValueError(f"{self.expression!r} is not a cron expression: {error}") from None
        if slot is None:
            raise ValueError(f"{self.expression!r} never comes")

    def after(self, when: datetime) -> Iterator[datetime]:
        """Yield the slots later than ``when``, in order, in UTC."""
        for slot in CronSim(self.expression, when.astimezone(self.zone)):
            moment = slot.astimezone(UTC)
            if moment > when:  # in an hour that occurs twice, wall-clock times of the first pass come again
                yield moment


def parse_timetable(spec: str, timezone: str) -> Cron | Interval:
    """Parse a stored timetable.

    Args:
        spec: a cron expression, or ``every`` and a number of seconds.
        timezone: an IANA name; used for cron only.

    Raises:
        ValueError: the expression or the zone is wrong.
    """
    if spec.startswith(_EVERY):
        return Interval(float(spec.removeprefix(_EVERY)))
    return Cron(spec, parse_zone(timezone))


def parse_zone(timezone: str) -> ZoneInfo:
    """Return a time zone by its IANA name.

    Raises:
        ValueError: it is not known here.
    """
    try:
        return ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{timezone!r} is not a known time zone; use a name like Europe/Berlin") from None


def interval_spec(seconds: float) -> str:
    """Return the stored form of an interval."""
    return f"{_EVERY}{seconds!r}"


def due_slots(
    timetable: Timetable, next_at: datetime, now: datetime, catch_up: str, grace_s: float
) -> tuple[list[datetime], datetime]:
    """Return the slots to fire now, and the next slot after them.

    Args:
        next_at: the first slot that has not been processed.
        now: the current time.
        catch_up: of the slots that are later than the grace, fire the ``last``, ``all`` (the newest thousand), or
            ``none``. With ``last`` it is fired only if there is no newer slot within the grace.
        grace_s: the maximum delay at which a slot counts as in time: the seconds in which another beat takes over.
    """
    in_time = now - timedelta(seconds=grace_s)
    slots = _between(timetable, next_at, now, MOST_SLOTS if catch_up == "all" else 1, in_time)
    if catch_up != "all":
        recent = [slot for slot in slots if slot >= in_time]
        slots = recent or (slots[-1:] if catch_up == "last" else [])
    return slots, next(timetable.after(now))


def _between(timetable: Timetable, first: datetime, now: datetime, wanted: int, since: datetime) -> list[datetime]:
    """Return the newest slots from ``first`` to ``now``: all since ``since``, and at least ``wanted`` if there are.

    The search goes back a day, then two, four, so that a year of silence does not cost the minutes of a year.
    """
    window = max(_WINDOW, now - since)
    while True:
        start = max(first, now - window)
        slots: deque[datetime] = deque(maxlen=MOST_SLOTS)
        for slot in timetable.after(start - timedelta(microseconds=1)):
            if slot > now:
                break
            slots.append(slot)
        if len(slots) >= wanted or start == first:
            return list(slots)
        window *= 2


@dataclass(frozen=True)
class Declared:
    """A schedule as an app declares it, or as a user creates it at run time.

    Args:
        spec, timezone: see :func:`parse_timetable`.
        topic, key, headers, body, tag: the message that is sent at each slot.
        task: the name of the task that it calls; empty for a plain message.
        expires_s: seconds after its slot after which a call is no longer run.
    """

    name: str
    spec: str
    timezone: str
    catch_up: str
    topic: str
    key: bytes | None
    headers: bytes
    body: bytes
    task: str = ""
    tag: bytes | None = None
    expires_s: float | None = None

    def slot_headers(self, slot: datetime) -> dict[str, str]:
        """Return the headers of the message of a slot."""
        headers = {**decode_headers(self.headers), SLOT_HEADER: slot.isoformat()}
        if self.expires_s is not None:
            headers[EXPIRES_HEADER] = (slot + timedelta(seconds=self.expires_s)).isoformat()
        return headers


@dataclass(frozen=True)
class ScheduleRow:
    """A schedule in a list; times are UTC.

    Attributes:
        topic: ``None`` if it was deleted.
        origin: ``code`` if an app declares it, ``user`` if it was created at run time.
        tag: of its calls; text, or bytes if it is not UTF-8.
    """

    name: str
    spec: str
    timezone: str
    catch_up: str
    topic: str | None
    next_at: datetime
    last_at: datetime | None
    declared_at: datetime
    origin: str = "code"
    paused: bool = False
    task: str = ""
    tag: str | bytes | None = None


def slot_uid(name: str, slot: datetime) -> bytes:
    """Return the uid of a slot: deterministic, and sorting by time as every uid does."""
    tail = bytearray(hashlib.sha256(f"{name} {slot.isoformat()}".encode()).digest()[:10])
    tail[0] = 0x70 | tail[0] & 0x0F
    tail[2] = 0x80 | tail[2] & 0x3F
    return int(slot.timestamp() * 1000).to_bytes(6, "big") + bytes(tail)


def check_origin(name: str, origin: str, wanted: str) -> None:
    """Refuse to change a schedule of the other origin.

    Raises:
        ConfigError: an app declares it, or it was created at run time.
    """
    if origin != wanted:
        raise ConfigError([Problem("schedule", repr(name), _OTHER_ORIGIN[origin])])


_OTHER_ORIGIN = {
    "code": "an app declares it in its code, and changes it there; at run time it can be paused and resumed only",
    "user": "it was created at run time; give the one in code another name=, or delete it with `ems schedules delete`",
}
