"""Databases that are emptied and used again: making and dropping the tables takes longer than most tests.

Nearly every test ends here, so a look at the tables of a database is spared where the server has counted no statement
that changes tables since the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import pymysql

from emsworker.local import LocalDatabase
from emsworker.store.engine.database import Database
from emsworker.store.engine.schema import latest_version
from tests.support.servers import (
    START_TIMEOUT_S,
    connect,
    create_database,
    drop_database,
    end_connections,
    make_hostile,
    url_of,
)
from tests.support.tables import migrate

Prepare = Callable[[str], None]
Shape = tuple[tuple[object, ...], ...]
Changes = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Recycled:
    """A database that was emptied.

    Args:
        name: of the database.
        shape: its tables, as they were made.
        versions: of its tables, as the database itself tells them.
        changes: what the server had counted of statements that change tables when it had this shape.
    """

    name: str
    shape: Shape
    versions: Shape
    changes: Changes


_FEW_ROWS = 500
_VERSION, _EXTENSIONS = "ems_schema_version", "ems_extension_version"
_SHAPE = (
    "SELECT table_name, column_name, column_type, is_nullable, column_default, extra FROM information_schema.columns "
    "WHERE table_schema = DATABASE() ORDER BY 1, 2",
    "SELECT table_name, index_name, seq_in_index, column_name FROM information_schema.statistics "
    "WHERE table_schema = DATABASE() ORDER BY 1, 2, 3",
    "SELECT table_name, constraint_name, constraint_type FROM information_schema.table_constraints "
    "WHERE table_schema = DATABASE() ORDER BY 1, 2",
    "SELECT trigger_name, '', '' FROM information_schema.triggers WHERE trigger_schema = DATABASE()",
    "SELECT routine_name, '', '' FROM information_schema.routines WHERE routine_schema = DATABASE()",
)
# Those that have numbered rows and begin with 1 again, also when the rows are gone; MySQL would tell what it has kept.
_NUMBERED = (
    "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND auto_increment > 1 "
    "AND table_type = 'BASE TABLE'"
)
_FRESH_FACTS = "SESSION sql_safe_updates = 0 /*!80000 , SESSION information_schema_stats_expiry = 0 */"
# TRUNCATE is not among them. After its start a server counts from 0, so the number of its process is as well.
_CHANGES = (
    "SHOW GLOBAL STATUS WHERE Variable_name REGEXP "
    "'^Com_(alter|create|drop|rename)_(table|index|view|trigger|procedure|function|tables)$'"
)
_unused: WeakKeyDictionary[LocalDatabase, dict[Prepare, list[Recycled]]] = WeakKeyDictionary()
_own: WeakKeyDictionary[LocalDatabase, Recycled] = WeakKeyDictionary()


def prepare_stream(url: str) -> None:
    """Make the tables of a stream."""
    with Database(url).session() as session:
        migrate(session)


@contextmanager
def recycled_database(server: LocalDatabase, prepare: Prepare = prepare_stream) -> Iterator[str]:
    """Yield the URL of a stream without rows, with an identity of its own.

    Args:
        server: a running server.
        prepare: makes the tables, if no database is left that it has made some for.
    """
    make_hostile(server)
    unused = _unused.setdefault(server, {}).setdefault(prepare, [])
    recycled = unused.pop() if unused else _make(server, prepare)
    try:
        yield url_of(server, recycled.name)
    finally:
        server.start(START_TIMEOUT_S)  # the test may have killed it on purpose
        if again := _emptied(server, recycled):
            unused.append(again)
        else:
            drop_database(server, recycled.name)


def renew_own(server: LocalDatabase) -> None:
    """Make a new stream of a server's own database, for what finds it by itself."""
    own = _own.pop(server, None)
    again = own and _emptied(server, own)
    if again is None:
        drop_database(server, "ems")
        create_database(server, "ems")
        prepare_stream(server.url)
        again = _as_it_is(server, "ems")
    else:
        prepare_stream(server.url)
    _own[server] = again


def _make(server: LocalDatabase, prepare: Prepare) -> Recycled:
    name = create_database(server)
    prepare(url_of(server, name))
    return _as_it_is(server, name)


def _as_it_is(server: LocalDatabase, name: str) -> Recycled:
    with _connect(server, name) as connection:
        return Recycled(name, _shape(connection), _versions(connection), _changes(server, connection))


def _emptied(server: LocalDatabase, recycled: Recycled) -> Recycled | None:
    """Delete what a test has left in a database; None if it has changed the tables themselves."""
    name, shape = recycled.name, recycled.shape
    with _connect(server, name) as connection, connection.cursor() as cursor:
        end_connections(cursor, name)
        changes = _changes(server, connection)
        if changes != recycled.changes:
            _drop_others(connection, shape)
            if _shape(connection) != shape:
                return None
            changes = _changes(server, connection)
        tables = _tables(shape)
        counts = " UNION ALL ".join(
            f"SELECT '{table}', COUNT(*) FROM (SELECT 1 FROM `{table}` LIMIT {_FEW_ROWS}) AS some" for table in tables
        )
        cursor.execute(counts)
        filled = {str(table): int(count) for table, count in cursor.fetchall() if count}
        cursor.execute(_NUMBERED)
        large = {str(row[0]) for row in cursor.fetchall()}
        large |= {table for table, count in filled.items() if count == _FEW_ROWS}
        for table in filled.keys() - large - {_VERSION, _EXTENSIONS}:
            cursor.execute(f"DELETE FROM `{table}`")
        if _VERSION in filled:  # a stream of its own, which needs no migration
            cursor.execute(f"DELETE FROM {_VERSION} WHERE version > %s", (latest_version(),))
            cursor.execute(f"UPDATE {_VERSION} SET stream_id = UNHEX(REPLACE(UUID(), '-', ''))")
        connection.commit()
        for table in large:
            cursor.execute(f"TRUNCATE TABLE `{table}`")
        if _versions(connection) != recycled.versions:  # nobody migrates it before the next test
            return None
    return replace(recycled, changes=changes)


def _drop_others(connection: pymysql.Connection[pymysql.cursors.Cursor], shape: Shape) -> None:
    """Drop the tables that a test has made beside those of the stream."""
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION foreign_key_checks = 0")  # a project's tables may point to each other
        for table in set(_tables(_shape(connection))) - set(_tables(shape)):
            cursor.execute(f"DROP TABLE IF EXISTS `{table}`")


def _tables(shape: Shape) -> list[str]:
    return sorted({str(row[0]) for row in shape if len(row) > 4})


def _connect(server: LocalDatabase, name: str) -> pymysql.Connection[pymysql.cursors.Cursor]:
    return connect(server.admin_url.rsplit("/", 1)[0] + f"/{name}", settings=_FRESH_FACTS)


def _changes(server: LocalDatabase, connection: pymysql.Connection[pymysql.cursors.Cursor]) -> Changes:
    with connection.cursor() as cursor:
        cursor.execute(_CHANGES)
        return (("process", str(server.pid)), *((str(name), str(count)) for name, count in cursor.fetchall()))


def _versions(connection: pymysql.Connection[pymysql.cursors.Cursor]) -> Shape:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT 'stream', version FROM {_VERSION} UNION SELECT extension, version FROM {_EXTENSIONS}")
        return tuple(sorted(cursor.fetchall()))


def _shape(connection: pymysql.Connection[pymysql.cursors.Cursor]) -> Shape:
    found: list[tuple[object, ...]] = []
    with connection.cursor() as cursor:
        for question in _SHAPE:
            cursor.execute(question)
            found.extend(cursor.fetchall())
    return tuple(found)
