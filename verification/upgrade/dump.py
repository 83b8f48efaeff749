"""A database as SQL text, with times that are as long ago when it is loaded as they were when it was written."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.support.servers import connect

_COLUMNS = (
    "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %s "
    "AND COALESCE(GENERATION_EXPRESSION, '') = '' ORDER BY ORDINAL_POSITION"
)
_END = ";\n"


def write_dump(url: str, path: Path) -> None:
    """Write all tables of a database, and their rows."""
    text = "".join(f"{statement}{_END}" for statement in _statements(url))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def load_dump(path: Path, url: str) -> None:
    """Make the tables of a dump in an empty database, and their rows."""
    with connect(url, autocommit=False) as connection, connection.cursor() as cursor:
        for statement in gzip.decompress(path.read_bytes()).decode().split(_END):
            if statement.strip():
                cursor.execute(statement)
        connection.commit()


def _statements(url: str) -> Iterator[str]:
    yield "SET @now = NOW(6)"
    with connect(url, autocommit=False) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION time_zone = '+00:00'")
        cursor.execute("SELECT NOW(6)")
        ((now,),) = cursor.fetchall()
        cursor.execute("SHOW TABLES")
        tables = [row[0] for row in cursor.fetchall()]
        for table in tables:
            cursor.execute(f"SHOW CREATE TABLE `{table}`")
            yield cursor.fetchall()[0][1]
        for table in tables:
            cursor.execute(_COLUMNS, (table,))
            columns = ", ".join(f"`{name}`" for (name,) in cursor.fetchall())
            cursor.execute(f"SELECT {columns} FROM `{table}`")
            for row in cursor.fetchall():
                values = ", ".join(_value(one, now) for one in row)
                yield f"INSERT INTO `{table}` ({columns}) VALUES ({values})"


def _value(value: Any, now: datetime) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, str):
        return f"_utf8mb4 X'{value.encode().hex()}'"
    if isinstance(value, datetime):
        return f"@now + INTERVAL {round((value - now).total_seconds() * 1e6)} MICROSECOND"
    return str(value)
