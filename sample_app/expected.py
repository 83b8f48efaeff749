"""What must come out, added up straight from the CSV's own text: none of the tasks' code is used here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from zlib import crc32

from sample_app.data import derived_id, flight_id, read_rows
from sample_app.gateway import fails
from sample_app.malformed import reasons
from sample_app.settings import LATE_MIN, READERS, ROTATING

Table = dict[tuple[str, ...], dict[str, int]]


@dataclass
class Expected:
    """Every number and every id that a run over these flights must end with.

    Args:
        carriers, routes, aircraft: sums by key and by column.
        rotations: each aircraft's flights for the airlines that follow them, with a checksum of their order.
        notices: flights whose notice gets through, with their delay.
        rotating_flights: how many flights those airlines have.
        flights, events, notifications: the ids of the messages of the three topics.
        malformed: the ids of the malformed rows among the flights.
        dead: the dead letters: group, id and reason.
    """

    carriers: Table = field(default_factory=dict)
    routes: Table = field(default_factory=dict)
    aircraft: Table = field(default_factory=dict)
    rotations: Table = field(default_factory=dict)
    notices: Table = field(default_factory=dict)
    flights: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    notifications: list[str] = field(default_factory=list)
    malformed: list[str] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)

    rotating_flights: int = 0

    @property
    def total(self) -> dict[str, int]:
        """The sums over all carriers."""
        sums: Table = {}
        for tally in self.carriers.values():
            _add(sums, (), tally)
        return sums.get((), {})


def expect(limit: int | None, seed: int, max_attempts: int) -> Expected:
    """Read the CSV and add everything up.

    Args:
        limit: at most so many flights.
        seed: of the gateway.
        max_attempts: how often a notice is tried.
    """
    expected = Expected()
    for row in read_rows(limit):
        flight = flight_id(row)
        expected.flights.append(flight)
        tally = dict(_tally(row, flight))
        _add(expected.carriers, (row["carrier"],), tally)
        _add(expected.routes, (row["origin"], row["dest"]), tally)
        expected.rotating_flights += row["carrier"] in ROTATING
        if row["tailnum"] != "NA":
            expected.events.append(derived_id("event", flight))
            leg = _fly(expected.aircraft, row)
            if row["carrier"] in ROTATING:
                _follow(expected.rotations, row["tailnum"], leg)
        if row["dep_delay"] != "NA" and int(row["dep_delay"]) > LATE_MIN:
            _notice(expected, flight, int(row["dep_delay"]), seed, max_attempts)
    for uid, reason in reasons(expected.flights).items():
        expected.malformed.append(uid)
        expected.dead += [f"{group} {uid}: {reason}" for group in READERS]
    return expected


def _tally(row: dict[str, str], flight: str) -> Iterator[tuple[str, int]]:
    departed = row["dep_time"] != "NA"
    yield "flights", 1
    yield "departures", 1 if departed else 0
    yield "cancellations", 0 if departed else 1
    yield "dep_delay_min", _number(row["dep_delay"])
    yield "arr_delay_min", _number(row["arr_delay"])
    yield "fingerprint", int(flight[:8], 16)


def _fly(aircraft: Table, row: dict[str, str]) -> int:
    departed, arrived = row["dep_time"] != "NA", row["air_time"] != "NA"
    log = aircraft.setdefault(
        (row["tailnum"],),
        dict.fromkeys(("flown", "cancelled", "diverted", "distance_mi", "air_min", "leg_sum", "last_leg"), 0),
    )
    log["last_leg"] += 1
    log["leg_sum"] += log["last_leg"]
    log["flown" if arrived else "diverted" if departed else "cancelled"] += 1
    if arrived:
        log["distance_mi"] += int(row["distance"])
        log["air_min"] += int(row["air_time"])
    return log["last_leg"]


def _follow(rotations: Table, tailnum: str, leg: int) -> None:
    rotation = rotations.setdefault((tailnum,), dict.fromkeys(("legs", "last_leg", "chain"), 0))
    rotation["legs"] += 1
    rotation["last_leg"] = leg
    rotation["chain"] = crc32(f"{rotation['chain']} {leg}".encode())


def _notice(expected: Expected, flight: str, delay_min: int, seed: int, max_attempts: int) -> None:
    uid = derived_id("notice", flight)
    expected.notifications.append(uid)
    if all(fails(seed, flight, attempt) for attempt in range(1, max_attempts + 1)):
        expected.dead.append(f"notifier {uid}: used up its {max_attempts} attempts")
    else:
        expected.notices[(flight,)] = {"delay_min": delay_min}


def _add(table: Table, key: tuple[str, ...], numbers: dict[str, int]) -> None:
    sums = table.setdefault(key, dict.fromkeys(numbers, 0))
    for name, number in numbers.items():
        sums[name] += number


def _number(text: str) -> int:
    return 0 if text == "NA" else int(text)
