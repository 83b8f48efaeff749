"""The tables that the migrations make, and how those of a database differ from them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from emsworker.core.errors import AccessDenied, SchemaMissing
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Sql, Statements, fill, identifier

_SQL = Statements(__name__)
_TABLE = re.compile(r"^CREATE TABLE IF NOT EXISTS (\w+) \((.*?)^\)", re.MULTILINE | re.DOTALL)
_COLUMN = re.compile(r"^  `?([a-z]\w*)`? [A-Z]", re.MULTILINE)  # keys begin with upper-case letters
_ADDED = re.compile(r"^ALTER TABLE (\w+) ADD COLUMN (?:IF NOT EXISTS )?`?(\w+)", re.MULTILINE)


def migrations() -> dict[int, Traversable]:
    """Return the file of each schema version."""
    folder = files("emsworker.store.engine") / "migrations"
    return {int(item.name[:4]): item for item in folder.iterdir() if item.name.endswith(".sql")}


def table_columns() -> dict[str, str]:
    """Return every table of the schema with the name of its first column, as the migrations create them."""
    return {table: columns[0] for table, columns in _columns(migrations()).items()}


def _columns(versions: Iterable[int]) -> dict[str, list[str]]:
    """Return the columns that each table has in these versions of the schema."""
    script = "\n".join(
        file.read_text(encoding="utf-8") for version, file in sorted(migrations().items()) if version in versions
    )
    found = {table: _COLUMN.findall(body) for table, body in _TABLE.findall(script)}
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


def find_faults(session: Session, version: int) -> TableFaults:
    """Compare the tables of a database with those of a schema version.

    A user sees only what it has privileges on. What it does not see is asked for by name: the server says of what
    exists that it is refused.
    """
    wanted = _columns(range(1, version + 1))
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
