"""Finds out, without changing anything, what ``ems check`` asks of a server."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from emsworker.core.errors import AccessDenied, SchemaMissing
from emsworker.store.grants import VERBS, needs
from emsworker.store.schema import table_columns
from emsworker.store.session import Session
from emsworker.store.sql import Statements

_SQL = Statements("probe")

MIGRATION_PRIVILEGES = ("CREATE", "ALTER", "INDEX")
_NO_TABLE = "ems_no_such_table"


def clock_difference_s(session: Session) -> float:
    """How many seconds the server's clock is ahead of ours, measured against the middle of the round trip."""
    session.rows(_SQL.get_clock)  # connects
    began = time.time()
    server = float(session.rows(_SQL.get_clock)[0][0])
    return server - (began + time.time()) / 2


def largest_limit(session: Session) -> tuple[str, int] | None:
    """The topic that accepts the largest messages, and how large, if there is a topic."""
    rows = session.rows(_SQL.get_largest_limit)
    return (rows[0][0], int(rows[0][1])) if rows else None


@dataclass(frozen=True)
class IdleTimeout:
    """A setting that closes silent connections.

    Attributes:
        seconds: for every connection that does not ask for another; own_s: for ours. Infinite if it is off.
    """

    name: str
    seconds: float
    own_s: float


def longest_timeout(session: Session) -> tuple[str, str, float] | None:
    """The topic and group whose messages may run longest, and for how many seconds, if there is a group."""
    rows = session.rows(_SQL.get_longest_timeout)
    return (rows[0][0], rows[0][1], float(rows[0][2])) if rows else None


def idle_timeouts(session: Session) -> list[IdleTimeout]:
    """What the server has of such settings, for everybody and for our own sessions."""
    own = dict(session.rows(_SQL.show_own_idle_timeouts))
    found = session.rows(_SQL.show_idle_timeouts)
    return [IdleTimeout(name, float(value) or math.inf, float(own[name]) or math.inf) for name, value in found]


def missing_privileges(
    session: Session, *, migrated: bool, role: str = "admin", allow: Sequence[str] = ()
) -> list[str]:
    """The privileges that this user lacks, such as ``DELETE on ems_dead`` or ``CREATE``.

    Each is really tried, with statements that touch no row, so that roles, wildcards and grants on single tables count
    as the server counts them.

    Args:
        migrated: whether our tables are there, so that each can be tried.
        role: whose privileges are asked for.
        allow: what the role is to be allowed besides (see :data:`emsworker.store.grants.ALLOWANCES`).
    """
    missing = list(_missing_on_tables(session, migrated, needs(role, allow)))
    return missing if role != "admin" else [*missing, *_missing_for_migration(session)]


def has_privileges(session: Session, role: str, allow: Sequence[str] = ()) -> bool:
    """Try all privileges of a role in one round trip; the first that is missing makes it false.

    Raises:
        SchemaMissing: a table is not there.
    """
    first, needed = table_columns(), needs(role, allow)
    tries = [_try(verb, table, column or first[table]) for table in needed for verb, column in needed[table].items()]
    try:
        session.send(";".join(tries))
    except AccessDenied:
        return False
    return True


def _missing_for_migration(session: Session) -> Iterator[str]:
    tries = (_SQL.try_create, _SQL.try_alter, _SQL.try_index)
    for privilege, statement in zip(MIGRATION_PRIVILEGES, tries, strict=True):
        if not _allowed(session, statement):
            yield privilege


def _missing_on_tables(
    session: Session, migrated: bool, needed: Mapping[str, Mapping[str, str | None]]
) -> Iterator[str]:
    first = table_columns()
    for privilege in VERBS:
        tables = {table: verbs[privilege] for table, verbs in needed.items() if privilege in verbs}
        if not migrated:
            tables = {_NO_TABLE: "x"} if tables else {}
        denied = [
            table
            for table, column in tables.items()
            if not _allowed(session, _try(privilege, table, column or first[table]))
        ]
        if len(denied) == len(tables) > 0:
            yield privilege
        else:
            yield from (f"{privilege} on {table}" for table in denied)


def _try(verb: str, table: str, column: str) -> str:
    statement: str = getattr(_SQL, f"try_{verb.lower()}")
    return statement.replace("{table}", table).replace("{column}", column)


def _allowed(session: Session, statement: str) -> bool:
    try:
        session.send(statement)
    except AccessDenied:
        return False
    except SchemaMissing:
        return True  # the server looks at privileges first
    return True


__all__ = [
    "MIGRATION_PRIVILEGES",
    "IdleTimeout",
    "clock_difference_s",
    "has_privileges",
    "idle_timeouts",
    "largest_limit",
    "longest_timeout",
    "missing_privileges",
]
