"""Checks of a server for ``ems check``, none of which changes anything."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from emsworker.core.errors import AccessDenied, SchemaMissing
from emsworker.core.extension import Extension, extensions
from emsworker.core.model import UNLIMITED_S
from emsworker.store.engine.grants import Grants
from emsworker.store.engine.rights import VERBS
from emsworker.store.engine.schema import present_extensions
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Sql, Statements, fill, identifier, join
from emsworker.store.engine.tables import has_tables, table_columns

_SQL = Statements(__name__)

MIGRATION_PRIVILEGES = ("CREATE", "ALTER", "INDEX")
_NO_TABLE = "ems_no_such_table"


def clock_difference_s(session: Session) -> float:
    """Return the seconds by which the server's clock is ahead of ours, measured at the middle of the round trip."""
    session.rows(_SQL.get_clock)  # connects
    began = time.time()
    server = float(session.rows(_SQL.get_clock)[0][0])
    return server - (began + time.time()) / 2


def largest_limit(session: Session) -> tuple[str, int] | None:
    """Return the topic that accepts the largest messages and its limit in bytes, or ``None`` if there is no topic."""
    rows = session.rows(_SQL.get_largest_limit)
    return (rows[0][0], int(rows[0][1])) if rows else None


def check_room(session: Session) -> None:
    """Check that the server has room for a message of 64 KB: insert one, and roll back.

    It needs the privilege to insert messages.

    Raises:
        DiskFull: it has none.
    """
    session.begin()
    try:
        session.execute(_SQL.try_room)
    finally:
        session.rollback()
    session.note_room()


def foreign_engines(session: Session) -> dict[str, str]:
    """Return the engine of each table of EMS that is not in InnoDB, by the table's name."""
    ours = table_columns(extensions().values())
    return {
        name: engine for name, engine in session.rows(_SQL.list_engines) if name in ours and engine.lower() != "innodb"
    }


def expel_timeout_s(session: Session) -> int | None:
    """Return the seconds that a replication group waits before it expels a member; ``None`` if there is no group."""
    rows = session.rows(_SQL.show_expel_timeout)
    return int(rows[0][1]) if rows else None


@dataclass(frozen=True)
class IdleTimeout:
    """A server setting that closes idle connections.

    Attributes:
        seconds: for connections that do not set their own.
        own_s: for our sessions; both are infinite if the setting is off.
    """

    name: str
    seconds: float
    own_s: float


def longest_timeout(session: Session) -> tuple[str, str, float] | None:
    """Return the topic, group and seconds of the longest message timeout, or ``None`` if no group has any."""
    rows = session.rows(_SQL.get_longest_timeout, {"unlimited_ms": round(UNLIMITED_S * 1000)})
    return (rows[0][0], rows[0][1], float(rows[0][2])) if rows else None


def idle_timeouts(session: Session) -> list[IdleTimeout]:
    """Return the idle timeouts that the server has, globally and for our own sessions."""
    own = dict(session.rows(_SQL.show_own_idle_timeouts))
    found = session.rows(_SQL.show_idle_timeouts)
    return [IdleTimeout(name, float(value) or math.inf, float(own[name]) or math.inf) for name, value in found]


def missing_privileges(
    session: Session, *, migrated: bool, role: str = "admin", allow: Sequence[str] = (), allowed: set[Sql] | None = None
) -> list[str]:
    """Return the privileges that this user lacks, such as ``DELETE on ems_dead`` or ``CREATE``.

    Each is tried with a statement that touches no row, so that roles, wildcards and grants on single tables count as
    the server counts them.

    Args:
        migrated: whether our tables exist, so that each can be tried.
        role: the role whose privileges are checked.
        allow: additional permissions of the role (see :class:`emsworker.store.engine.grants.Grants`).
        allowed: what was tried for other roles, and need not be tried again; it is added to.
    """
    needed = _grants(session, migrated).needs(role, allow)
    has_all = migrated and _has_all(session, needed, set() if allowed is None else allowed)
    missing = [] if has_all else list(_missing_on_tables(session, migrated, needed))
    return missing if role != "admin" else [*missing, *_missing_for_migration(session)]


def has_privileges(session: Session, role: str, allow: Sequence[str] = ()) -> bool:
    """Return whether the user has all privileges of a role; they are tried in one round trip.

    Raises:
        SchemaMissing: a table does not exist.
    """
    try:
        session.send(join(";", _tries(Grants(present_extensions(session)).needs(role, allow))))
    except AccessDenied:
        return False
    return True


def roles(session: Session, *, migrated: bool) -> Sequence[str]:
    """Return the roles that users of this stream may have, the one with the most privileges first."""
    grants = _grants(session, migrated)
    return sorted(grants.roles, key=lambda role: -sum(len(verbs) for verbs in grants.privileges(role).values()))


def _grants(session: Session, migrated: bool) -> Grants:
    """Return the rights on the tables that the stream has; on all that it may have if this user cannot read that."""
    try:
        return Grants(present_extensions(session) if migrated else extensions().values())
    except AccessDenied:
        return Grants(extensions().values())


def _has_all(session: Session, needed: Mapping[str, Mapping[str, str]], allowed: set[Sql]) -> bool:
    """Try all privileges in one round trip: one by one they are several hundred, and most users have them."""
    tries = [one for one in _tries(needed) if one not in allowed]
    try:
        if tries:
            session.send(join(";", tries))
    except (AccessDenied, SchemaMissing):
        return False
    allowed.update(tries)
    return True


def _tries(needed: Mapping[str, Mapping[str, str]]) -> list[Sql]:
    return [_try(verb, table, column) for table in needed for verb, column in needed[table].items()]


def may_insert(session: Session, table: str) -> bool:
    """Return whether the user may insert into a table of EMS; no row is touched."""
    return _allowed(session, _try("INSERT", table, table_columns()[table]))


def with_tables(session: Session) -> list[Extension]:
    """Return the extensions whose tables the stream has; none if this user cannot read that."""
    try:
        return [one for one in present_extensions(session) if has_tables(one)]
    except AccessDenied:
        return []


def _missing_for_migration(session: Session) -> Iterator[str]:
    tries = (_SQL.try_create, _SQL.try_alter, _SQL.try_index)
    for privilege, statement in zip(MIGRATION_PRIVILEGES, tries, strict=True):
        if not _allowed(session, statement):
            yield privilege


def _missing_on_tables(session: Session, migrated: bool, needed: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for privilege in VERBS:
        tables = {table: verbs[privilege] for table, verbs in needed.items() if privilege in verbs}
        if not migrated:
            tables = {_NO_TABLE: "x"} if tables else {}
        denied = [table for table, column in tables.items() if not _allowed(session, _try(privilege, table, column))]
        if len(denied) == len(tables) > 0:
            yield privilege
        else:
            yield from (f"{privilege} on {table}" for table in denied)


def _try(verb: str, table: str, column: str) -> Sql:
    return fill(_SQL[f"try_{verb.lower()}"], {"table": identifier(table), "column": identifier(column)})


def _allowed(session: Session, statement: Sql) -> bool:
    try:
        session.send(statement)
    except AccessDenied:
        return False
    except SchemaMissing:
        return True  # the server checks privileges first
    return True


__all__ = [
    "MIGRATION_PRIVILEGES",
    "IdleTimeout",
    "clock_difference_s",
    "has_privileges",
    "idle_timeouts",
    "largest_limit",
    "longest_timeout",
    "may_insert",
    "missing_privileges",
]
