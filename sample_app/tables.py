"""The sample's own tables. Upserts come in sorted order, so that two workers never wait for each other in a circle."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

import pymysql

Connection: TypeAlias = "pymysql.connections.Connection[Any]"
Sums = dict[tuple[str, ...], list[int]]

TALLY = ("flights", "departures", "cancellations", "dep_delay_min", "arr_delay_min", "fingerprint")
ROTATION = ("legs", "last_leg", "chain")
LOGBOOK = ("flown", "cancelled", "diverted", "distance_mi", "air_min", "leg_sum", "last_leg")

_CREATE = (
    """CREATE TABLE IF NOT EXISTS sample_carrier (
  carrier VARCHAR(8) NOT NULL,
  flights BIGINT NOT NULL, departures BIGINT NOT NULL, cancellations BIGINT NOT NULL,
  dep_delay_min BIGINT NOT NULL, arr_delay_min BIGINT NOT NULL, fingerprint BIGINT NOT NULL,
  PRIMARY KEY (carrier)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin""",
    """CREATE TABLE IF NOT EXISTS sample_route (
  origin VARCHAR(8) NOT NULL, dest VARCHAR(8) NOT NULL,
  flights BIGINT NOT NULL, departures BIGINT NOT NULL, cancellations BIGINT NOT NULL,
  dep_delay_min BIGINT NOT NULL, arr_delay_min BIGINT NOT NULL, fingerprint BIGINT NOT NULL,
  PRIMARY KEY (origin, dest)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin""",
    """CREATE TABLE IF NOT EXISTS sample_aircraft (
  tailnum VARCHAR(16) NOT NULL,
  flown BIGINT NOT NULL, cancelled BIGINT NOT NULL, diverted BIGINT NOT NULL,
  distance_mi BIGINT NOT NULL, air_min BIGINT NOT NULL, leg_sum BIGINT NOT NULL, last_leg BIGINT NOT NULL,
  PRIMARY KEY (tailnum)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin""",
    """CREATE TABLE IF NOT EXISTS sample_notice (
  flight CHAR(36) NOT NULL,
  delay_min BIGINT NOT NULL, attempt BIGINT NOT NULL, due_at DATETIME(6) NOT NULL, told_at DATETIME(6) NOT NULL,
  PRIMARY KEY (flight)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin""",
    """CREATE TABLE IF NOT EXISTS sample_rotation (
  tailnum VARCHAR(16) NOT NULL,
  legs BIGINT NOT NULL, last_leg BIGINT NOT NULL, chain BIGINT NOT NULL,
  PRIMARY KEY (tailnum)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin""",
    """CREATE TABLE IF NOT EXISTS sample_share (
  slot DATETIME NOT NULL, carrier VARCHAR(8) NOT NULL,
  flights BIGINT NOT NULL, departures BIGINT NOT NULL, cancellations BIGINT NOT NULL,
  dep_delay_min BIGINT NOT NULL, arr_delay_min BIGINT NOT NULL, fingerprint BIGINT NOT NULL,
  PRIMARY KEY (slot, carrier)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin""",
    """CREATE TABLE IF NOT EXISTS sample_summary (
  slot DATETIME NOT NULL,
  flights BIGINT NOT NULL, departures BIGINT NOT NULL, cancellations BIGINT NOT NULL,
  dep_delay_min BIGINT NOT NULL, arr_delay_min BIGINT NOT NULL, fingerprint BIGINT NOT NULL,
  PRIMARY KEY (slot)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin""",
    """CREATE TABLE IF NOT EXISTS sample_title (
  slot DATETIME NOT NULL, title VARCHAR(100) NOT NULL,
  PRIMARY KEY (slot)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin""",
    """CREATE TABLE IF NOT EXISTS sample_process (
  pid INT NOT NULL, title VARCHAR(100) NOT NULL,
  PRIMARY KEY (pid, title)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin""",
)

_ADD_CARRIER = """INSERT INTO sample_carrier
  (carrier, flights, departures, cancellations, dep_delay_min, arr_delay_min, fingerprint)
VALUES (%s, %s, %s, %s, %s, %s, %s) ON DUPLICATE KEY UPDATE
  flights = flights + VALUES(flights), departures = departures + VALUES(departures),
  cancellations = cancellations + VALUES(cancellations), dep_delay_min = dep_delay_min + VALUES(dep_delay_min),
  arr_delay_min = arr_delay_min + VALUES(arr_delay_min), fingerprint = fingerprint + VALUES(fingerprint)"""
_ADD_ROUTE = """INSERT INTO sample_route
  (origin, dest, flights, departures, cancellations, dep_delay_min, arr_delay_min, fingerprint)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s) ON DUPLICATE KEY UPDATE
  flights = flights + VALUES(flights), departures = departures + VALUES(departures),
  cancellations = cancellations + VALUES(cancellations), dep_delay_min = dep_delay_min + VALUES(dep_delay_min),
  arr_delay_min = arr_delay_min + VALUES(arr_delay_min), fingerprint = fingerprint + VALUES(fingerprint)"""
_ADD_AIRCRAFT = """INSERT INTO sample_aircraft
  (tailnum, flown, cancelled, diverted, distance_mi, air_min, leg_sum, last_leg)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s) ON DUPLICATE KEY UPDATE
  flown = flown + VALUES(flown), cancelled = cancelled + VALUES(cancelled), diverted = diverted + VALUES(diverted),
  distance_mi = distance_mi + VALUES(distance_mi), air_min = air_min + VALUES(air_min),
  leg_sum = leg_sum + VALUES(leg_sum), last_leg = GREATEST(last_leg, VALUES(last_leg))"""
_ADD_NOTICE = """INSERT IGNORE INTO sample_notice (flight, delay_min, attempt, due_at, told_at)
VALUES (%s, %s, %s, %s, UTC_TIMESTAMP(6))"""
_ADD_LEG = """INSERT INTO sample_rotation (tailnum, legs, last_leg, chain)
VALUES (%(tailnum)s, 1, %(leg)s, CRC32(CONCAT('0 ', %(leg)s))) ON DUPLICATE KEY UPDATE
  legs = legs + 1, last_leg = VALUES(last_leg), chain = CRC32(CONCAT(chain, ' ', VALUES(last_leg)))"""
# Nothing of the nightly summary is done twice, so none of these statements passes over a row that is there.
_ADD_SHARE = """INSERT INTO sample_share
  (slot, carrier, flights, departures, cancellations, dep_delay_min, arr_delay_min, fingerprint)
SELECT %s, carrier, flights, departures, cancellations, dep_delay_min, arr_delay_min, fingerprint
FROM sample_carrier WHERE carrier = %s"""
_SUM_UP = """INSERT INTO sample_summary
  (slot, flights, departures, cancellations, dep_delay_min, arr_delay_min, fingerprint)
SELECT slot, SUM(flights), SUM(departures), SUM(cancellations), SUM(dep_delay_min), SUM(arr_delay_min), SUM(fingerprint)
FROM sample_share WHERE slot = %s GROUP BY slot"""

_READ_CARRIERS = """SELECT carrier, flights, departures, cancellations, dep_delay_min, arr_delay_min, fingerprint
FROM sample_carrier"""
_READ_ROUTES = """SELECT origin, dest, flights, departures, cancellations, dep_delay_min, arr_delay_min, fingerprint
FROM sample_route"""
_READ_AIRCRAFT = """SELECT tailnum, flown, cancelled, diverted, distance_mi, air_min, leg_sum, last_leg
FROM sample_aircraft"""
_READ_ROTATIONS = """SELECT tailnum, legs, last_leg, chain FROM sample_rotation"""
_READ_NOTICES = """SELECT flight, delay_min FROM sample_notice"""
_COUNT_EARLY = """SELECT COUNT(*) FROM sample_notice WHERE told_at < due_at"""
_READ_SHARES = """SELECT carrier, flights, departures, cancellations, dep_delay_min, arr_delay_min, fingerprint
FROM sample_share WHERE slot = %s"""
_READ_SUMMARY = """SELECT flights, departures, cancellations, dep_delay_min, arr_delay_min, fingerprint
FROM sample_summary WHERE slot = %s"""

_local = threading.local()


def connect(url: str) -> Connection:
    """A new connection, with autocommit.

    Args:
        url: as ``EMS_URL``.
    """
    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or 3306,
        user=unquote(parts.username or "root"),
        password=unquote(parts.password or ""),
        database=unquote(parts.path.lstrip("/")),
        autocommit=True,
    )


def thread_connection(url: str) -> Connection:
    """The calling thread's own connection, opened at its first use and again after a loss."""
    connection: Connection | None = getattr(_local, "connection", None)
    if connection is None:
        connection = _local.connection = connect(url)
    connection.ping(reconnect=True)
    return connection


def create(connections: Sequence[Connection]) -> None:
    """Create the tables that are missing; on each server, because a group's are where its topic is."""
    for statement in _CREATE:
        query_all(connections, statement)


def query_all(connections: Sequence[Connection], statement: str, args: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Run one statement on each server, one after another, and return the rows of all."""
    return [row for connection in connections for row in query(connection, statement, args)]


def query(connection: Connection, statement: str, args: Sequence[Any] = ()) -> tuple[tuple[Any, ...], ...]:
    """Run one statement and return its rows."""
    with connection.cursor() as cursor:
        cursor.execute(statement, args)
        return tuple(cursor.fetchall())


# -- writing: `to` is an open transaction, or anything else with executemany() -----------------------------------------


def add_carriers(to: Any, sums: Sums) -> None:
    """Add to the carriers' sums; keys are ``(carrier,)``, values in the order of ``TALLY``."""
    to.executemany(_ADD_CARRIER, _sorted_rows(sums))


def add_routes(to: Any, sums: Sums) -> None:
    """Add to the routes' sums; keys are ``(origin, dest)``, values in the order of ``TALLY``."""
    to.executemany(_ADD_ROUTE, _sorted_rows(sums))


def add_aircraft(to: Any, sums: Sums) -> None:
    """Add to the aircraft's sums; keys are ``(tailnum,)``, values in the order of ``LOGBOOK``."""
    to.executemany(_ADD_AIRCRAFT, _sorted_rows(sums))


def _sorted_rows(sums: Sums) -> list[tuple[Any, ...]]:
    return [(*key, *values) for key, values in sorted(sums.items())]


def add_leg(to: Any, tailnum: str, leg: int) -> None:
    """Append a flight to an aircraft's; ``chain`` is a checksum of all of them in the order in which they came."""
    to.execute(_ADD_LEG, {"tailnum": tailnum, "leg": leg})


def list_carriers(to: Any) -> list[str]:
    """All carriers that :func:`add_carriers` has added to."""
    return [carrier for (carrier,) in to.execute("SELECT carrier FROM sample_carrier ORDER BY carrier").fetchall()]


def add_share(to: Any, slot: datetime, carrier: str) -> None:
    """Write a carrier's share of the summary of a time in UTC."""
    to.execute(_ADD_SHARE, (slot.replace(tzinfo=None), carrier))


def delete_shares(to: Any, slot: datetime) -> int:
    """Delete the shares of a slot, and return how many there were."""
    return _delete(to, "DELETE FROM sample_share WHERE slot = %s", slot)


def sum_up(to: Any, slot: datetime) -> None:
    """Write the summary of a slot: the sums over its shares."""
    to.execute(_SUM_UP, (slot.replace(tzinfo=None),))


def add_title(to: Any, slot: datetime, title: str) -> None:
    """Write the title of a summary down."""
    to.execute("INSERT INTO sample_title (slot, title) VALUES (%s, %s)", (slot.replace(tzinfo=None), title))


def delete_summary(to: Any, slot: datetime) -> int:
    """Delete a summary and its title, and return how many rows these were."""
    title = _delete(to, "DELETE FROM sample_title WHERE slot = %s", slot)
    return title + _delete(to, "DELETE FROM sample_summary WHERE slot = %s", slot)


def _delete(to: Any, statement: str, slot: datetime) -> int:
    return int(to.execute(statement, (slot.replace(tzinfo=None),)).rowcount)


def add_process(connection: Connection, pid: int, title: str) -> None:
    """Note by which title a process goes."""
    query(connection, "INSERT INTO sample_process (pid, title) VALUES (%s, %s)", (pid, title))


def add_notice(connection: Connection, flight: str, delay_min: int, attempt: int, due_at: str) -> None:
    """Note that the gateway has been told, and when it was to be told; a second time changes nothing."""
    query(connection, _ADD_NOTICE, (flight, delay_min, attempt, due_at))


# -- reading: of all servers -------------------------------------------------------------------------------------------


def read_carriers(connections: Sequence[Connection]) -> Mapping[tuple[str, ...], list[int]]:
    """What :func:`add_carriers` has added up."""
    return _sums(connections, _READ_CARRIERS, 1)


def read_routes(connections: Sequence[Connection]) -> Mapping[tuple[str, ...], list[int]]:
    """What :func:`add_routes` has added up."""
    return _sums(connections, _READ_ROUTES, 2)


def read_aircraft(connections: Sequence[Connection]) -> Mapping[tuple[str, ...], list[int]]:
    """What :func:`add_aircraft` has added up."""
    return _sums(connections, _READ_AIRCRAFT, 1)


def read_rotations(connections: Sequence[Connection]) -> Mapping[tuple[str, ...], list[int]]:
    """What :func:`add_leg` has noted."""
    return _sums(connections, _READ_ROTATIONS, 1)


def read_notices(connections: Sequence[Connection]) -> Mapping[tuple[str, ...], list[int]]:
    """Which flights' notices got through: ``(flight,)`` -> ``[delay_min]``."""
    return _sums(connections, _READ_NOTICES, 1)


def count_early_notices(connections: Sequence[Connection]) -> int:
    """How many notices came before their time."""
    return sum(count for (count,) in query_all(connections, _COUNT_EARLY))


def read_summary(connections: Sequence[Connection], slot: datetime) -> list[int]:
    """What :func:`sum_up` has written for a slot, in the order of ``TALLY``; nothing if it has not."""
    return [
        int(number) for row in query_all(connections, _READ_SUMMARY, (slot.replace(tzinfo=None),)) for number in row
    ]


def read_shares(connections: Sequence[Connection], slot: datetime) -> Mapping[tuple[str, ...], list[int]]:
    """The shares of a slot, in the order of ``TALLY``."""
    return _sums(connections, _READ_SHARES, 1, (slot.replace(tzinfo=None),))


def read_titles(connections: Sequence[Connection], slot: datetime) -> list[str]:
    """The title of the summary of a slot."""
    rows = query_all(connections, "SELECT title FROM sample_title WHERE slot = %s", (slot.replace(tzinfo=None),))
    return [str(title) for (title,) in rows]


def count_titles(connections: Sequence[Connection], title: str) -> int:
    """How many processes have come to go by a title."""
    statement = "SELECT COUNT(*) FROM sample_process WHERE title = %s"
    return sum(count for (count,) in query_all(connections, statement, (title,)))


def _sums(connections: Sequence[Connection], statement: str, keys: int, args: Sequence[Any] = ()) -> Sums:
    """Return rows by key; what two servers have of one is added up, and so is a difference from what is expected."""
    sums: Sums = {}
    for row in query_all(connections, statement, args):
        known = sums.get(row[:keys])
        sums[row[:keys]] = [*row[keys:]] if known is None else [a + b for a, b in zip(known, row[keys:], strict=True)]
    return sums
