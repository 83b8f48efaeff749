"""The output of a command that runs for each of several servers, collected to be printed as one answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from .cells import Row

COLLECTED = "ems.collected"


@dataclass
class PrintedList:
    """A list that a command prints for each server; those with the same columns are one.

    Args:
        columns, as_json, empty, spare: as in :func:`.output.print_rows`.
    """

    rows: list[Row]
    columns: Sequence[str]
    as_json: bool
    empty: str
    spare: Sequence[str]


@dataclass(frozen=True)
class Said:
    """A record that a command has printed for a server."""

    record: Row


@dataclass
class Collected:
    """The output of a command for the servers so far.

    Attributes:
        server: the one that it runs for now.
        parts: the tables and the records, in the order in which they were first printed.
        values: what was printed as JSON.
    """

    server: str = ""
    parts: list[PrintedList | Said] = field(default_factory=list)
    values: list[Row] = field(default_factory=list)

    def add_rows(self, table: PrintedList) -> None:
        """Take a list of the present server."""
        table.rows = [{"server": self.server, **row} for row in table.rows]
        for part in self.parts:
            if isinstance(part, PrintedList) and list(part.columns) == list(table.columns):
                part.rows += table.rows
                return
        self.parts.append(table)

    def add_record(self, record: Row) -> None:
        """Take a record of the present server."""
        self.parts.append(Said({"server": self.server, **record}))

    def add_value(self, value: Any) -> None:
        """Take what the present server's answer is as JSON: a record, or several."""
        self.values += [{"server": self.server, **one} for one in (value if isinstance(value, list) else [value])]


def collected() -> Collected | None:
    """The output that is collected now, if a command runs for each server."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(COLLECTED)
