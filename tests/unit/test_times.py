"""Times in UTC, at the ends of the calendar too."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from emsworker.core.times import in_utc

EAST, WEST = timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        (datetime(2026, 1, 2, 3), datetime(2026, 1, 2, 3, tzinfo=UTC)),
        (datetime(2026, 1, 2, 3, tzinfo=EAST), datetime(2026, 1, 1, 13, tzinfo=UTC)),
        (datetime(1, 1, 1, tzinfo=EAST), FIRST),
        (datetime(9999, 12, 31, 23, tzinfo=WEST), LAST),
        (datetime.min, FIRST),
        (datetime.max, LAST),
    ],
)
def test_every_time_has_one_in_utc(when: datetime, expected: datetime) -> None:
    assert in_utc(when) == expected
    assert in_utc(when).tzinfo is UTC
