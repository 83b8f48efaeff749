"""Points in time."""

from __future__ import annotations

from datetime import UTC, datetime

NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)
"""The time of what has none: shown as unknown."""


def utc(text: str) -> datetime:
    """Parse a time of the server, which is in UTC.

    Plain SQL can write dates that are none, such as 0000-00-00, into the stream's tables: they are :data:`NO_TIME`.
    """
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return NO_TIME


def in_utc(when: datetime) -> datetime:
    """Return a time in UTC; without a zone it is in UTC already.

    One at an end of the calendar that UTC does not reach, such as the first hours of the year 1 east of it, becomes the
    first or last moment of a datetime.
    """
    if when.tzinfo is None:
        return when.replace(tzinfo=UTC)
    try:
        return when.astimezone(UTC)
    except OverflowError:
        end = datetime.min if when.year == datetime.min.year else datetime.max
        return end.replace(tzinfo=UTC)
