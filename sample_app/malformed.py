"""Rows that are wrong on purpose, and what is to be said of each: they end as dead letters and harm nobody else."""

from __future__ import annotations

from typing import Any, NamedTuple

from sample_app.data import derived_id

_AFTER_ROWS = range(25, 301, 25)


class Malformed(NamedTuple):
    """A message that is no flight.

    Attributes:
        reason: what every group that reads the flights is to say of it.
    """

    uid: str
    body: Any
    reason: str


def malformed_after(number: int, uid: str, flight: dict[str, Any]) -> Malformed | None:
    """The malformed row that follows a row, if one does.

    Args:
        number: of the row, from 1.
        uid, flight: of the row, which is spoilt in one of three ways.
    """
    if number not in _AFTER_ROWS:
        return None
    ways: list[tuple[Any, str]] = [
        ({name: value for name, value in flight.items() if name != "carrier"}, "there is no carrier"),
        (flight | {"dep_delay": "late"}, "dep_delay is 'late', and should be a number"),
        ("2013,1,1,517,515,2,8", "a str is no row"),
    ]
    body, reason = ways[_AFTER_ROWS.index(number) % len(ways)]
    return Malformed(derived_id("malformed", uid), body, reason)


def reasons(flights: list[str]) -> dict[str, str]:
    """The malformed rows among so many flights: their ids, and why each is refused."""
    found = (malformed_after(number, uid, {}) for number, uid in enumerate(flights, 1))
    return {one.uid: one.reason for one in found if one is not None}
