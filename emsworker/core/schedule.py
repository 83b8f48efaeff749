"""Timetables of periodic tasks: cron expressions in a time zone, and intervals; pure, in UTC on both sides.

Cron has the semantics of Debian's cron (by cronsim): a job at a set hour that the change to summer time skips runs
right after the gap, and a job in the hour that occurs twice runs once; a job for every n minutes runs by elapsed time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

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
    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{timezone!r} is not a known time zone; use a name like Europe/Berlin") from None
    return Cron(spec, zone)


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
    """A schedule as an app declares it.

    Args:
        spec, timezone: see :func:`parse_timetable`.
        topic, key, headers, body: the message that is sent at each slot.
    """

    name: str
    spec: str
    timezone: str
    catch_up: str
    topic: str
    key: bytes | None
    headers: bytes
    body: bytes
