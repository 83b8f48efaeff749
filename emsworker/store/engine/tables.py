"""The tables that the migrations make, and how those of a database differ from them."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from emsworker.core.errors import AccessDenied, SchemaMissing
from emsworker.core.extension import Extension
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Sql, Statements, fill, identifier

_SQL = Statements(__name__)
CORE = "emsworker.store.engine"
"""The package of the core's migrations."""

_TABLE = re.compile(r"^CREATE TABLE IF NOT EXISTS (\w+) \((.*?)^\)([^;]*;)", re.MULTILINE | re.DOTALL)
_COLUMN = re.compile(r"^  `?([a-z]\w*)`? [A-Z]", re.MULTILINE)  # keys begin with upper-case letters
_ADDED = re.compile(r"^ALTER TABLE (\w+) ADD COLUMN (?:IF NOT EXISTS )?`?(\w+)", re.MULTILINE)


@functools.cache
def migrations(package: str = CORE) -> dict[int, Traversable]:
    """Return the scripts in a package by version, in order: ``NNNN_title.sql`` files in its folder ``migrations``.

    Args:
        package: that of the core, or an extension's, which may have none.
    """
    folder = files(package) / "migrations"
    found = [item for item in folder.iterdir() if item.name.endswith(".sql")] if folder.is_dir() else []
    return {int(item.name[:4]): item for item in sorted(found, key=lambda item: item.name)}


def latest_of(package: str) -> int:
    """Return the version of a package's tables that this code works with; 0 without tables."""
    return max(migrations(package), default=0)


def newer(package: str, version: int) -> dict[int, Traversable]:
    """Return the migrations of a package above a version, in order."""
    return {number: file for number, file in migrations(package).items() if number > version}


def has_tables(extension: Extension) -> bool:
    """Return whether an extension has tables of its own."""
    return bool(migrations(extension.package))


def create_statements(package: str = CORE) -> dict[str, str]:
    """Return every table of a package with the statement that creates it."""
    return {one[1]: one[0] for one in _TABLE.finditer(_script(package))}


def table_columns(used: Iterable[Extension] = ()) -> dict[str, str]:
    """Return every table with the name of its first column, as the migrations create them.

    Args:
        used: the extensions whose tables are wanted as well.
    """
    packages = (CORE, *(one.package for one in used))
    return {table: columns[0] for package in packages for table, columns in _columns(package).items()}


def _script(package: str, most: int | None = None) -> str:
    scripts = (file for version, file in migrations(package).items() if most is None or version <= most)
    return "\n".join(file.read_text(encoding="utf-8") for file in scripts)


def _columns(package: str, most: int | None = None) -> dict[str, list[str]]:
    """Return the columns that each table of a package has in a version of it."""
    script = _script(package, most)
    found = {one[1]: _COLUMN.findall(one[2]) for one in _TABLE.finditer(script)}
    for table, column in _ADDED.findall(script):
        found[table].append(column)
    return found


@dataclass(frozen=True)
class TableFaults:
    """Differences of a database from a version of the schema.

    Attributes:
        missing: tables that do not exist.
        foreign: tables that are not ours although they have such a name: the columns that they lack.
    """

    missing: tuple[str, ...]
    foreign: dict[str, tuple[str, ...]]


def find_faults(session: Session, version: int, package: str = CORE) -> TableFaults:
    """Compare the tables of a database with those of a version of the core, or of an extension.

    A user sees only what it has privileges on. What it does not see is asked for by name: the server says of what
    exists that it is refused.
    """
    wanted = _columns(package, version)
    seen: dict[str, set[str]] = {}
    for table, column in session.rows(_SQL.list_columns):
        seen.setdefault(table, set()).add(column)
    missing = [table for table in wanted if table not in seen and _is_unknown(session, table, wanted[table][0])]
    lacks = {
        table: tuple(one for one in columns if one not in seen[table] and _is_unknown(session, table, one))
        for table, columns in wanted.items()
        if table in seen
    }
    return TableFaults(tuple(missing), {table: columns for table, columns in lacks.items() if columns})


def _is_unknown(session: Session, table: str, column: str) -> bool:
    try:
        session.rows(_ask(table, column))
    except SchemaMissing:
        return True
    except AccessDenied:
        return False
    return False


def _ask(table: str, column: str) -> Sql:
    return fill(_SQL.ask_column, {"table": identifier(table), "column": identifier(column)})
