"""Failures of a command: each problem in one line, and the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click


class CommandFailure(click.ClickException):
    """An error in one line for each problem, without a traceback."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines

    def show(self, file: Any = None) -> None:
        """Print ``Error: ...`` for every line."""
        from emsworker.core.terminal_text import escape_control

        for line in self.lines:
            click.echo(f"Error: {escape_control(line)}", err=True)


class WrongUsage(CommandFailure):
    """Wrong usage: settings, names or the app are wrong."""

    exit_code = 2


class EachServer(Exception):
    """The command is to be run for each of several servers; :mod:`.fan_out` does that.

    Args:
        names: of the servers.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        super().__init__("the command was not run for each server")
