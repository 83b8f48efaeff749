"""Schema versions, migrations, and facts about the server."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pymysql.err import MySQLError

from emsworker.core.counted import plural
from emsworker.core.errors import SchemaMissing, ServerUnsupported
from emsworker.core.extension import Extension, extensions
from emsworker.core.ids import new_uid
from emsworker.core.servers import ServerRun
from emsworker.core.times import utc
from emsworker.store.engine.errors import code_of
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Sql, Statements, fill, identifier
from emsworker.store.engine.tables import CORE, find_faults, has_tables, latest_of, migrations, newer

if TYPE_CHECKING:
    from emsworker.store.engine.upgrade_plan import PlannedStep

Tell = Callable[[str], None]
"""What is told of the progress of a migration, in a line each time."""

_SQL = Statements(__name__)
_UNKNOWN_VARIABLE = 1193
_NAMED = 3
# Beside the rest, an empty one says that messages, or places in the stream, never were.
_STREAM = frozenset({"ems_topic", "ems_topic_guard", "ems_partition", "ems_message", "ems_group", "ems_cursor"})


def versions() -> list[int]:
    """Return the schema versions that there are, in order."""
    return list(migrations())


def latest_version() -> int:
    """Return the schema version that this code works with."""
    return latest_of(CORE)


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


@dataclass(frozen=True)
class TablesVersion:
    """The version of the tables that a database has.

    Attributes:
        version: 0 without tables.
        oldest_program: the version of the tables that a program must know, at least, to work with these.
    """

    version: int
    oldest_program: int

    def admits(self, known: int) -> bool:
        """Return whether a program works with them that knows the tables up to some version.

        One that knows less uses what it knows; one that knows more would use what is not there yet.
        """
        return self.version >= known >= self.oldest_program


_NO_TABLES = TablesVersion(0, 0)


def current_version(session: Session) -> int:
    """Return the schema version of the database, 0 if it has none."""
    return _tables_version(session).version


def _tables_version(session: Session) -> TablesVersion:
    if not session.rows(_SQL.find_version_table)[0][0]:
        return _NO_TABLES
    version, oldest = session.rows(_SQL.get_version)[0]
    return TablesVersion(int(version or 0), int(oldest or 0))


def extension_versions(session: Session) -> dict[str, int]:
    """Return the extensions whose tables the database has, with their versions; none if that table is missing."""
    return {name: one.version for name, one in _extension_versions(session).items()}


def _extension_versions(session: Session) -> dict[str, TablesVersion]:
    try:
        rows = session.rows(_SQL.list_extension_versions)
    except SchemaMissing:  # `ems migrate` comes here, too, and puts it back
        return {}
    return {name: TablesVersion(int(version), int(oldest)) for name, version, oldest in rows}


def present_extensions(session: Session) -> list[Extension]:
    """Return the installed extensions whose tables the database has, and those that have none."""
    found = extension_versions(session)
    return [one for one in extensions().values() if one.name in found or not has_tables(one)]


def migrate(session: Session, more: Iterable[Extension] = (), tell: Tell | None = None) -> list[int]:
    """Bring the schema up to date under running programs; goes on where an earlier call was interrupted.

    Tables of an extension are created for those that ask for them, and are brought up to date wherever they exist.
    Tables that are newer than this code, and with which it works, are left as they are.

    Args:
        more: extensions whose tables are wanted.
        tell: is told of the progress, in a line each time.

    Returns:
        the versions of the core that were applied.

    Raises:
        SchemaMissing: another migration holds the lock, this code cannot work with newer tables, or there is a foreign
            table with the name of one of ours, and nothing was changed; or a table was in use all the time.
    """
    from emsworker.store.engine.migrator import run_migration  # nothing else needs it
    from emsworker.store.engine.steps import oldest_program

    if session.rows(_SQL.lock_migration)[0][0] != 1:
        raise SchemaMissing(
            "another `ems migrate` has been running for 30 seconds; wait for it, or look at SHOW PROCESSLIST"
        )
    try:
        _refuse_foreign(session, 1, ("ems_schema_version",))  # its own columns tell the version
        tables = _tables_version(session)
        if tables.version > latest_version() and not tables.admits(latest_version()):
            raise _mismatch(tables.version)
        _refuse_foreign(session, max(tables.version, 1))
        todo = newer(CORE, tables.version)
        for version, file in todo.items():
            run_migration(session, "", version, file, tell)
            row = {"version": version, "stream_id": new_uid(), "oldest_program": oldest_program(file)}
            session.execute(_SQL.add_version, row)
        wanted = {one.name: one for one in (*more, *present_extensions(session))}
        for one in wanted.values():
            _migrate_extension(session, one, tell)
        return list(todo)
    finally:
        session.rows(_SQL.unlock_migration)


def plan_migration(session: Session, more: Iterable[Extension] = ()) -> list[PlannedStep]:
    """Return the steps that :func:`migrate` would take now; nothing is changed."""
    from emsworker.store.engine.upgrade_plan import planned_steps

    steps = [*planned_steps(session, "", CORE, current_version(session))]
    versions = extension_versions(session)
    present = present_extensions(session) if versions else []
    for one in {one.name: one for one in (*more, *present)}.values():
        steps += planned_steps(session, one.name, one.package, versions.get(one.name, 0))
    return steps


def _refuse_foreign(session: Session, version: int, tables: Collection[str] | None = None, package: str = CORE) -> None:
    """Refuse before the first statement: CREATE TABLE IF NOT EXISTS would pass over a table of somebody else."""
    foreign = find_faults(session, version, package).foreign
    for table in foreign if tables is None else [table for table in tables if table in foreign]:
        raise SchemaMissing(foreign_table(table, foreign[table]))


def foreign_table(table: str, lacks: Sequence[str]) -> str:
    """Return the error message for a table that has the name of one of ours, and lacks columns."""
    more = f" and {len(lacks) - _NAMED} more" if len(lacks) > _NAMED else ""
    columns = plural(len(lacks), "column")
    return (
        f"table {table} has no {columns} {', '.join(lacks[:_NAMED])}{more}: it is not made by this version of EMS; "
        "rename or drop it, or give EMS a database of its own"
    )


def put_back(session: Session) -> list[str]:
    """Create the tables that are missing although their version was applied, empty; return their names.

    Raises:
        SchemaMissing: one of them holds the stream itself, or they are newer than this code. Nothing was changed.
    """
    version = current_version(session)
    missing = find_faults(session, version).missing
    _refuse_newer(missing, version, CORE)
    if lost := [table for table in missing if table in _STREAM]:
        raise SchemaMissing(
            f"of the tables of the stream itself, {', '.join(lost)} {'is' if len(lost) == 1 else 'are'} missing; "
            "restore the database from a backup, or drop all tables of EMS to begin anew"
        )
    restored = list(missing)
    if missing:
        _make_again(session, CORE, version, missing)
    present = extension_versions(session)
    for one in present_extensions(session):
        known = present.get(one.name, 0)
        if theirs := find_faults(session, known, one.package).missing:
            _refuse_newer(theirs, known, one.package)
            _make_again(session, one.package, known, theirs)
            restored += theirs
    return restored


def _refuse_newer(missing: Collection[str], version: int, package: str) -> None:
    """This code would make the tables again without what the newer version has added to them."""
    if missing and version > latest_of(package):
        raise SchemaMissing(
            f"of the tables of version {version}, {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; "
            "run `ems migrate` of the release that made them"
        )


def _make_again(session: Session, package: str, version: int, missing: Collection[str]) -> None:
    from emsworker.store.engine.migrator import create_again

    for made, file in migrations(package).items():
        if made <= version:
            create_again(session, file, missing)


def _migrate_extension(session: Session, extension: Extension, tell: Tell | None) -> None:
    from emsworker.store.engine.migrator import run_migration
    from emsworker.store.engine.steps import oldest_program

    tables, latest = _extension_versions(session).get(extension.name, _NO_TABLES), latest_of(extension.package)
    if tables.version > latest and not tables.admits(latest):
        raise _extension_mismatch(extension, tables.version)
    _refuse_foreign(session, max(tables.version, 1), package=extension.package)
    for version, file in newer(extension.package, tables.version).items():
        run_migration(session, extension.name, version, file, tell)
        row = {"extension": extension.name, "version": version, "oldest_program": oldest_program(file)}
        session.execute(_SQL.add_extension_version, row)


def check_extension(session: Session, extension: Extension) -> None:
    """Reject tables of an extension that this code cannot work with.

    Raises:
        SchemaMissing: the message names both versions, or the command that creates the tables.
    """
    tables = _extension_versions(session).get(extension.name, _NO_TABLES)
    if not tables.admits(latest_of(extension.package)):
        raise _extension_mismatch(extension, tables.version)


def _extension_mismatch(extension: Extension, current: int) -> SchemaMissing:
    name, latest = extension.name, latest_of(extension.package)
    if current == 0:
        return SchemaMissing(f"the database has no tables of {name}; run `ems migrate --with {name}`")
    fix = "run `ems migrate`" if current < latest else f"install a newer {name}"
    return SchemaMissing(f"the tables of {name} are of version {current}, this code needs {latest}; {fix}")


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
    """Reject a schema that this code cannot work with: an older one, and a newer one that is not made for it.

    Raises:
        SchemaMissing: the message names both versions.
    """
    tables = _tables_version(session)
    if not tables.admits(latest_version()):
        raise _mismatch(tables.version)


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
