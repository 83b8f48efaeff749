"""Points in time."""

from __future__ import annotations

from datetime import UTC, datetime


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
