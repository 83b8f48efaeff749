"""Schema versions, migrations, and facts about the server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from pymysql.err import MySQLError

from emsworker.core.errors import SchemaMissing, ServerUnsupported
from emsworker.core.ids import new_uid
from emsworker.core.times import utc
from emsworker.store.engine.errors import code_of
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Sql, Statements, fill, identifier, read_script

_SQL = Statements(__name__)
_UNKNOWN_VARIABLE = 1193


def _migrations() -> dict[int, Traversable]:
    folder = files("emsworker.store.engine") / "migrations"
    return {int(item.name[:4]): item for item in folder.iterdir() if item.name.endswith(".sql")}


def versions() -> list[int]:
    """Return the schema versions that there are, in order."""
    return sorted(_migrations())


def latest_version() -> int:
    """Return the schema version that this code works with."""
    return versions()[-1]


def table_columns() -> dict[str, str]:
    """Return every table of the schema with the name of its first column, as the migrations create them."""
    script = "\n".join(file.read_text(encoding="utf-8") for _, file in sorted(_migrations().items()))
    return dict(re.findall(r"^CREATE TABLE IF NOT EXISTS (\w+) \(\s*`?(\w+)", script, re.MULTILINE))


def check_server(session: Session) -> None:
    """Reject a server that lacks what the protocol needs.

    Raises:
        ServerUnsupported: the message names its version and the supported ones.
    """
    facts = server_facts(session)
    if not facts.supported:
        raise ServerUnsupported(unsupported(facts))


def unsupported(facts: ServerFacts) -> str:
    """Return the error message for a server that is not supported."""
    why = "whose SKIP LOCKED locks nothing" if facts.is_tidb else "which is too old"
    return f"the server is {facts.kind} {facts.version}, {why}; EMS needs MariaDB >= 10.6 or MySQL >= 8.0"


def current_version(session: Session) -> int:
    """Return the schema version of the database, 0 if it has none."""
    if not session.rows(_SQL.find_version_table)[0][0]:
        return 0
    return int(session.rows(_SQL.get_version)[0][0] or 0)


def migrate(session: Session) -> list[int]:
    """Bring the schema up to date; idempotent, and safe if two processes do it at once.

    Returns:
        the versions that were applied.

    Raises:
        SchemaMissing: another migration holds the lock, or the database is newer than this code.
    """
    if session.rows(_SQL.lock_migration)[0][0] != 1:
        raise SchemaMissing(
            "another `ems migrate` has been running for 30 seconds; wait for it, or look at SHOW PROCESSLIST"
        )
    try:
        current = current_version(session)
        if current > latest_version():
            raise _mismatch(current)
        todo = {version: file for version, file in sorted(_migrations().items()) if version > current}
        for version, file in todo.items():
            _apply(session, version, file)
        return list(todo)
    finally:
        session.rows(_SQL.unlock_migration)


def _apply(session: Session, version: int, file: Traversable) -> None:
    # DDL commits by itself, so every statement can be repeated after a crash in between.
    for statement in read_script(file):
        session.send(statement)
    session.execute(_SQL.add_version, {"version": version, "stream_id": new_uid()})


def create_database(session: Session, name: str) -> None:
    """Create an empty database for a test; ``name`` consists of lower-case letters, digits and ``_``."""
    session.send(fill(_SQL.create_database, {"name": identifier(_plain(name))}))


def drop_database(session: Session, name: str) -> None:
    """Drop a database with all its contents."""
    session.send(fill(_SQL.drop_database, {"name": identifier(_plain(name))}))


def _plain(name: str) -> str:
    if not re.fullmatch("[a-z0-9_]{1,64}", name):  # it is inserted into a statement
        raise ValueError(f"{name!r} is no plain name of a database")
    return name


def check_version(session: Session) -> None:
    """Reject a schema that this code does not know.

    Raises:
        SchemaMissing: the message names both versions.
    """
    current = current_version(session)
    if current != latest_version():
        raise _mismatch(current)


def _mismatch(current: int) -> SchemaMissing:
    if current == 0:
        return SchemaMissing("the database has no tables of EMS; run `ems migrate`")
    fix = "run `ems migrate`" if current < latest_version() else "install a newer emsworker"
    return SchemaMissing(f"the tables of EMS are of version {current}, this code needs {latest_version()}; {fix}")


def stream_id(session: Session) -> str:
    """Return the identity of this stream, which its first migration created."""
    return str(session.rows(_SQL.get_stream_id)[0][0].hex())


def stream_id_text(database: str) -> Sql:
    """Return the statement that reads the identity of the stream in a database, for a connection of the caller."""
    return fill(_SQL.get_identity_of_stream, {"database": identifier(database)})


def server_now(session: Session) -> datetime:
    """Return the server's time, in UTC."""
    return utc(session.rows(_SQL.get_now)[0][0])


@dataclass(frozen=True)
class ServerRun:
    """Identity of the server that answers, and its uptime in whole seconds (at most one too many)."""

    identity: tuple[object, ...]
    up_s: float


def server_run(session: Session) -> ServerRun:
    """Ask which server answers and since when: another one after a failover, or the same one after a restart."""

    def attempt() -> ServerRun:
        packet = session.packet()
        packet.begin()
        who = packet.add(_SQL.get_identity)
        since = packet.add(_SQL.get_uptime)
        packet.commit()
        results = packet.send()
        return ServerRun(results[who].rows[0], float(results[since].rows[0][1]))

    return session.retry_on_conflict(attempt)


@dataclass(frozen=True)
class ServerFacts:
    """Version and settings that the server reports."""

    version: str
    database: str
    user: str
    max_allowed_packet: int
    flush_log_at_commit: int
    log_bin: bool
    sync_binlog: int
    binlog_format: str
    read_only: bool
    now: str

    @property
    def is_mariadb(self) -> bool:
        """True if it is MariaDB rather than MySQL."""
        return "mariadb" in self.version.lower()

    @property
    def is_tidb(self) -> bool:
        """True if it is TiDB, which speaks MySQL's protocol and ignores SKIP LOCKED (pingcap/tidb issue 69720)."""
        return "tidb" in self.version.lower()

    @property
    def kind(self) -> str:
        """MySQL, MariaDB or TiDB."""
        return "TiDB" if self.is_tidb else "MariaDB" if self.is_mariadb else "MySQL"

    @property
    def product(self) -> str:
        """Kind and version, without the suffixes of a distribution: ``MariaDB 10.11.6``."""
        return f"{self.kind} {self.version.partition('-')[0]}"

    @property
    def supported(self) -> bool:
        """True for MariaDB >= 10.6 and MySQL >= 8.0, which have SKIP LOCKED and window functions."""
        if self.is_tidb:
            return False
        numbers = re.match(r"(\d+)\.(\d+)", self.version)
        return numbers is not None and (int(numbers[1]), int(numbers[2])) >= ((10, 6) if self.is_mariadb else (8, 0))


def server_facts(session: Session) -> ServerFacts:
    """Ask the server for the settings that affect a stream."""
    try:
        row = session.rows(_SQL.describe_server)[0]
    except MySQLError as error:
        if code_of(error) != _UNKNOWN_VARIABLE:
            raise
        # Newer MySQL servers have no binlog_format: it is always ROW.
        row = session.rows(_SQL.describe_server_without_binlog_format)[0]
    return ServerFacts(*_typed(row))


def _typed(row: tuple[Any, ...]) -> tuple[Any, ...]:
    version, database, user, packet, flush, log_bin, sync, binlog_format, read_only, now = row
    return (
        version,
        database,
        user,
        int(packet),
        int(flush),
        bool(log_bin),
        int(sync),
        binlog_format,
        bool(read_only),
        now,
    )


def grants(session: Session) -> list[str]:
    """Return the grants of the current user, without password hashes."""
    return [
        re.sub(r"IDENTIFIED BY .*? '[^']*'|IDENTIFIED BY PASSWORD '[^']*'", "", row[0])
        for row in session.rows(_SQL.show_grants)
    ]
