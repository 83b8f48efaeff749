"""The steps of a migration: its statements, and what each of them does to which table.

A file of a migration says in its head which programs may go on: ``-- oldest program: N``, the version of the tables
that they know; without it, only those of its own version. Each statement is a step:

* ``CREATE TABLE IF NOT EXISTS``: it can be repeated, and is not recorded.
* ``ALTER TABLE`` with one change, and ``%(instantly)s`` or ``%(in_place)s`` at its end: the server's algorithm. Others
  would stop the programs that run, and are refused.
* with ``%(range_of_TABLE)s`` in its condition: a backfill, run for one range of the table's primary key after another.
* any other statement: run once; it must be harmless when repeated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources.abc import Traversable

from emsworker.store.engine.sql import Sql, read_script

_OLDEST = re.compile(r"^-- oldest program: (\d+)$", re.MULTILINE)
_CREATE = re.compile(r"CREATE\sTABLE IF NOT EXISTS `?(\w+)")
_ALTER = re.compile(r"ALTER\sTABLE `?(\w+)`?\s+(.*)", re.DOTALL)
_CHANGE = re.compile(r"(ADD|DROP) (COLUMN|(?:UNIQUE )?(?:KEY|INDEX)) `?(\w+)")
_WAY = re.compile(r",\s*%\((instantly|in_place)\)s$")
_RANGE = re.compile(r"%\((range_of_(\w+))\)s")


class Algorithm(StrEnum):
    """The way in which a step is done."""

    CREATE = "new table"
    INSTANT = "instant"
    IN_PLACE = "in place"
    BACKFILL = "backfill"
    ONCE = "statement"


@dataclass(frozen=True)
class TableChange:
    """A part of a table that a step adds or drops.

    Attributes:
        adds: it adds it.
        is_column: it is a column rather than a key.
    """

    adds: bool
    is_column: bool
    name: str


@dataclass(frozen=True)
class MigrationStep:
    """One statement of a migration.

    Attributes:
        number: counts from 1.
        table: that it changes, or reads a backfill from; empty for other statements.
        change: that can be asked for, if there is one.
        range_name: the parameter of a backfill that stands for a range of rows.
    """

    number: int
    sql: Sql
    algorithm: Algorithm
    table: str = ""
    change: TableChange | None = None
    range_name: str = ""

    @property
    def is_recorded(self) -> bool:
        """True if it is written down: not that a new table was made, which the database itself says."""
        return self.algorithm is not Algorithm.CREATE

    @property
    def text(self) -> str:
        """A few words for a person."""
        if self.algorithm is Algorithm.CREATE:
            return f"create {self.table}"
        if self.algorithm is Algorithm.BACKFILL:
            return f"{' '.join(self.sql.split()[:2]).lower()} from the rows of {self.table}"
        if self.change is None:
            return f"change {self.table}" if self.table else self.sql.split("\n")[0][:60]
        kind = "column" if self.change.is_column else "key"
        verb, link = ("add", "to") if self.change.adds else ("drop", "from")
        return f"{verb} {kind} {self.change.name} {link} {self.table}"


def steps_of(file: Traversable) -> list[MigrationStep]:
    """Return the steps of a migration.

    Raises:
        ValueError: a statement would stop the programs that run.
    """
    return [_step(number, sql, file.name) for number, sql in enumerate(read_script(file), 1)]


def oldest_program(file: Traversable) -> int:
    """Return the version of the tables that a program must know, at least, to work with those of a migration."""
    said = _OLDEST.search(file.read_text(encoding="utf-8"))
    return int(said[1]) if said else int(file.name[:4])


def _step(number: int, sql: Sql, name: str) -> MigrationStep:
    if created := _CREATE.match(sql):
        return MigrationStep(number, sql, Algorithm.CREATE, created[1])
    if ranged := _RANGE.search(sql):
        return MigrationStep(number, sql, Algorithm.BACKFILL, ranged[2], range_name=ranged[1])
    altered = _ALTER.match(sql)
    if altered is None:
        return MigrationStep(number, sql, Algorithm.ONCE)
    way, found = _WAY.search(sql), _CHANGE.findall(altered[2])
    if way is None or len(found) > 1:
        raise ValueError(
            f"{name}: statement {number} alters {altered[1]} in a way that may lock it; make one change in a "
            "statement, and end it with %(instantly)s or %(in_place)s"
        )
    change = TableChange(found[0][0] == "ADD", found[0][1] == "COLUMN", found[0][2]) if found else None
    algorithm = Algorithm.INSTANT if way[1] == "instantly" else Algorithm.IN_PLACE
    return MigrationStep(number, sql, algorithm, altered[1], change)
