"""Finds out, without changing anything, what ``ems check`` asks of a server."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from emsworker.core.errors import AccessDenied, SchemaMissing
from emsworker.store.grants import needs
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


def missing_privileges(session: Session, *, migrated: bool, role: str = "admin") -> list[str]:
    """The privileges that this user lacks, such as ``DELETE on ems_dead`` or ``CREATE``.

    Each is really tried, with statements that touch no row, so that roles, wildcards and grants on single tables count
    as the server counts them.

    Args:
        migrated: whether our tables are there, so that each can be tried.
        role: whose privileges are asked for.
    """
    missing = list(_missing_on_tables(session, migrated, needs(role)))
    return missing if role != "admin" else [*missing, *_missing_for_migration(session)]


def _missing_for_migration(session: Session) -> Iterator[str]:
    tries = (_SQL.try_create, _SQL.try_alter, _SQL.try_index)
    for privilege, statement in zip(MIGRATION_PRIVILEGES, tries, strict=True):
        if not _allowed(session, statement):
            yield privilege


def _missing_on_tables(
    session: Session, migrated: bool, needed: Mapping[str, Mapping[str, str | None]]
) -> Iterator[str]:
    tries = {
        "SELECT": _SQL.try_select,
        "INSERT": _SQL.try_insert,
        "UPDATE": _SQL.try_update,
        "DELETE": _SQL.try_delete,
    }
    first = table_columns()
    for privilege, statement in tries.items():
        tables = {table: verbs[privilege] for table, verbs in needed.items() if privilege in verbs}
        if not migrated:
            tables = {_NO_TABLE: "x"} if tables else {}
        denied = [
            table
            for table, column in tables.items()
            if not _allowed(session, statement.replace("{table}", table).replace("{column}", column or first[table]))
        ]
        if len(denied) == len(tables) > 0:
            yield privilege
        else:
            yield from (f"{privilege} on {table}" for table in denied)


def _allowed(session: Session, statement: str) -> bool:
    try:
        session.send(statement)
    except AccessDenied:
        return False
    except SchemaMissing:
        return True  # the server looks at privileges first
    return True


__all__ = ["MIGRATION_PRIVILEGES", "clock_difference_s", "largest_limit", "missing_privileges"]
