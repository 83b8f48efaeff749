"""Databases that are emptied and used again: making and dropping the tables takes longer than most tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
_FEW_ROWS = 500
_VERSION, _EXTENSIONS = "ems_schema_version", "ems_extension_version"
_SHAPE = (
    "SELECT table_name, column_name, column_type, is_nullable, column_default, extra FROM information_schema.columns "
    "WHERE table_schema = DATABASE() ORDER BY 1, 2",
    "SELECT table_name, index_name, seq_in_index, column_name FROM information_schema.statistics "
    "WHERE table_schema = DATABASE() ORDER BY 1, 2, 3",
    "SELECT trigger_name, '', '' FROM information_schema.triggers WHERE trigger_schema = DATABASE()",
    "SELECT routine_name, '', '' FROM information_schema.routines WHERE routine_schema = DATABASE()",
)
# Those that have numbered rows and begin with 1 again, also when the rows are gone; MySQL would tell what it has kept.
_NUMBERED = (
    "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND auto_increment > 1 "
    "AND table_type = 'BASE TABLE'"
)
_FRESH_FACTS = "SESSION sql_safe_updates = 0 /*!80000 , SESSION information_schema_stats_expiry = 0 */"
_unused: WeakKeyDictionary[LocalDatabase, dict[Prepare, list[tuple[str, Shape]]]] = WeakKeyDictionary()
_own: WeakKeyDictionary[LocalDatabase, Shape] = WeakKeyDictionary()


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
    name, shape = unused.pop() if unused else _make(server, prepare)
    try:
        yield url_of(server, name)
    finally:
        server.start(START_TIMEOUT_S)  # the test may have killed it on purpose
        if _emptied(server, name, shape):
            unused.append((name, shape))
        else:
            drop_database(server, name)


def renew_own(server: LocalDatabase) -> None:
    """Make a new stream of a server's own database, for what finds it by itself."""
    shape = _own.get(server)
    if shape is None or not _emptied(server, "ems", shape):
        drop_database(server, "ems")
        create_database(server, "ems")
        prepare_stream(server.url)
        _own[server] = _shape_of(server, "ems")
    else:
        prepare_stream(server.url)


def _make(server: LocalDatabase, prepare: Prepare) -> tuple[str, Shape]:
    name = create_database(server)
    prepare(url_of(server, name))
    return name, _shape_of(server, name)


def _shape_of(server: LocalDatabase, name: str) -> Shape:
    with _connect(server, name) as connection:
        return _shape(connection)


def _emptied(server: LocalDatabase, name: str, shape: Shape) -> bool:
    """Delete what a test has left in a database; False if it has changed the tables themselves."""
    end_connections(server, name)
    with _connect(server, name) as connection, connection.cursor() as cursor:
        if _shape(connection) != shape:
            return False
        tables = sorted({str(row[0]) for row in shape if len(row) > 4})
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
    return True


def _connect(server: LocalDatabase, name: str) -> pymysql.Connection[pymysql.cursors.Cursor]:
    return connect(server.admin_url.rsplit("/", 1)[0] + f"/{name}", settings=_FRESH_FACTS)


def _shape(connection: pymysql.Connection[pymysql.cursors.Cursor]) -> Shape:
    found: list[tuple[object, ...]] = []
    with connection.cursor() as cursor:
        for question in _SHAPE:
            cursor.execute(question)
            found.extend(cursor.fetchall())
    return tuple(found)
