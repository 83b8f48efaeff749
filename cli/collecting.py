"""The output of a command that runs for each of several servers, collected to be printed as one answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import click

from .cells import Row

COLLECTED = "ems.collected"


@dataclass
class PrintedList:
    """A list that a command has printed for each server.

    Args:
        columns, as_json, empty, spare: as in :func:`.output.print_rows`, of the last server.
    """

    rows: Sequence[Row]
    columns: Sequence[str]
    as_json: bool
    empty: str
    spare: Sequence[str]


@dataclass(frozen=True)
class Said:
    """A record that a command has printed for a server."""

    record: Row
    as_json: bool


@dataclass
class Collected:
    """The output of a command for the servers so far.

    Attributes:
        server: the one that it runs for now.
    """

    server: str = ""
    tables: list[PrintedList] = field(default_factory=list)
    records: list[Said] = field(default_factory=list)


def collected() -> Collected | None:
    """The output that is collected now, if a command runs for each server."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(COLLECTED)
