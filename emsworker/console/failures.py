"""Failures of a command: each problem in one line, and the exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

T = TypeVar("T")
R = TypeVar("R")
Errors = Mapping[Any, Exception]
"""Of those items of a command with which something could not be done, by item."""


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


class ItemFailures(CommandFailure):
    """Errors of some of the items that a command was given; it has done the others."""

    def __init__(self, errors: Errors) -> None:
        super().__init__([str(error) for error in errors.values()])
        self.errors = errors


def each_of(items: Iterable[T], work: Callable[[T], R]) -> tuple[list[R], Errors]:
    """Do something with each of several items, also after it has failed for one of them.

    Returns:
        the results, and the errors of the others; :func:`end_with` is to be called with them.

    Raises:
        EmsError: nothing can be done with any of them.
    """
    from emsworker.core.errors import AccessDenied, EmsError, SchemaMissing, StoreUnavailable

    done, errors = list[R](), dict[T, Exception]()
    for item in dict.fromkeys(items):
        try:
            done.append(work(item))
        except (AccessDenied, SchemaMissing, StoreUnavailable):
            raise
        except (EmsError, ValueError) as error:  # of one item, perhaps of a row of somebody's making
            errors[item] = error
    return done, errors


def end_with(errors: Errors) -> None:
    """End the command with exit code 1 if something could not be done with some of its items.

    Raises:
        ItemFailures: so it is.
    """
    if errors:
        raise ItemFailures(errors)


class EachServer(Exception):
    """The command is to be run for each of several servers; :mod:`.fan_out` does that.

    Args:
        names: of the servers.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        super().__init__("the command was not run for each server")
