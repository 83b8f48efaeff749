"""Compares every number in MySQL with what the CSV says, and every id in the stream with what was to be sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sample_app import stream, tables
from sample_app.expected import Expected, Table
from sample_app.settings import AIRCRAFT_EVENTS, FLIGHTS, NOTIFICATIONS, REFUSAL, REHEARSAL
from sample_app.tables import LOGBOOK, ROTATION, TALLY, Connection


@dataclass
class Outcome:
    """What a verification found.

    Args:
        compared: how many numbers and ids were looked at.
        differences: one line for each that is not what it should be.
    """

    compared: int = 0
    differences: list[str] = field(default_factory=list)

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(self.compared + other.compared, self.differences + other.differences)

    def table(
        self, what: str, found: Mapping[tuple[str, ...], Sequence[int]], columns: Sequence[str], want: Table
    ) -> None:
        """Compare two tables number by number."""
        for key in sorted(found.keys() ^ want.keys()):
            self.compared += 1
            self.differences.append(f"{what} {'-'.join(key)} is only in {'MySQL' if key in found else 'the CSV'}")
        for key in sorted(found.keys() & want.keys()):
            name = f"{what} {'-'.join(key)}"
            for column, number in zip(columns, found[key], strict=True):
                self.number(f"{name}: {column}", int(number), want[key][column])

    def number(self, what: str, found: int, want: int) -> None:
        """Compare one number."""
        self.compared += 1
        if found != want:
            self.differences.append(f"{what} is {found:,} in MySQL, and should be {want:,}")

    def ids(self, what: str, found: Iterable[str], want: Iterable[str]) -> None:
        """Compare which ids there are, and how often: each that is wanted exactly once."""
        have, need = Counter(found), Counter(want)
        self.compared += need.total()
        for uid in sorted((have - need).keys()):
            self.differences.append(f"{what}: {uid} is there {have[uid]} times, and should be {need[uid]} times")
        for uid in sorted((need - have).keys()):
            self.differences.append(f"{what}: {uid} is missing")


def verify(connections: Sequence[Connection], expected: Expected) -> Outcome:
    """Compare tables, messages, dead letters and the state of every group.

    Args:
        connections: to the database of each server, after all groups have finished.
        expected: from the CSV.
    """
    outcome = Outcome()
    outcome.table("carrier", tables.read_carriers(connections), TALLY, expected.carriers)
    outcome.table("route", tables.read_routes(connections), TALLY, expected.routes)
    outcome.table("aircraft", tables.read_aircraft(connections), LOGBOOK, expected.aircraft)
    outcome.table("rotation of", tables.read_rotations(connections), ROTATION, expected.rotations)
    outcome.table("notice", tables.read_notices(connections), ("delay_min",), expected.notices)
    for topic, uids in (
        (FLIGHTS, [*expected.flights, *expected.malformed]),
        (AIRCRAFT_EVENTS, expected.events),
        (NOTIFICATIONS, expected.notifications),
    ):
        outcome.ids(f"topic {topic}", stream.read_uids(connections, topic), uids)
    outcome.number("notices that came early", tables.count_early_notices(connections), 0)
    outcome.ids("dead letters", stream.read_dead(connections), expected.dead)
    for group in stream.read_groups(connections):
        name = f"group {group.group} of {group.topic}"
        outcome.number(f"{name}: handed out", group.handed_out, group.messages)
        outcome.number(f"{name}: open claims", group.claims, 0)
        outcome.number(f"{name}: retries", group.retries, 0)
        outcome.number(f"{name}: delayed", group.delayed, 0)
    return outcome


def verify_summary(connections: Sequence[Connection], expected: Expected, slot: datetime) -> Outcome:
    """Compare the nightly summary of a slot, and each carrier's share of it."""
    outcome, name = Outcome(), f"{slot:%H:%M:%S}"
    outcome.table("share of", tables.read_shares(connections, slot), TALLY, expected.carriers)
    found = {(name,): tables.read_summary(connections, slot)}
    outcome.table("summary of", {key: row for key, row in found.items() if row}, TALLY, {(name,): expected.total})
    return outcome


def verify_rehearsal(connections: Sequence[Connection], expected: Expected, slot: datetime) -> Outcome:
    """Compare what the rehearsal of a slot has undone, and what is left of it."""
    outcome = Outcome()
    undone = ["1. withdraw_report took back 2", f"2. discard_shares took back {len(expected.carriers)}"]
    outcome.ids("calls that undo the rehearsal", stream.read_undone(connections, REHEARSAL), undone)
    left = len(tables.read_shares(connections, slot)) + len(tables.read_titles(connections, slot))
    outcome.number("rows left of the rehearsal", left + bool(tables.read_summary(connections, slot)), 0)
    refused = f"flow {REHEARSAL!r} has failed: Reject: {REFUSAL}; its steps were undone, so it is over"
    outcome.ids("dead letters of flows", stream.read_dead_flows(connections), [refused])
    outcome.number("flows that have not ended", stream.count_open_flows(connections), 0)
    return outcome


def verify_title(connections: Sequence[Connection], slot: datetime, title: str, processes: int) -> Outcome:
    """Compare the title of the summary of a slot, and how many processes went by it."""
    outcome = Outcome()
    outcome.ids("title of the summary", tables.read_titles(connections, slot), [title])
    outcome.number("processes that go by the title", tables.count_titles(connections, title), processes)
    return outcome
