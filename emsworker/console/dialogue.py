"""Notes of a command beside its output, and its questions."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import click

from emsworker.core.counted import plural

from .output import print_done

T = TypeVar("T")


def as_far_as_allowed(read: Callable[[bool], T], details: str) -> T:
    """Return what is read with details; without them, with a note, if this user may not read them.

    Args:
        read: called with whether to read the details.
        details: names them.
    """
    from emsworker.core.errors import AccessDenied

    try:
        return read(True)
    except AccessDenied:
        found = read(False)
    click.echo(f"Left out: {details}, which this database user may not read (see `ems grants`).", err=True)
    return found


def say_age(age_s: float | None) -> None:
    """Tell beside a list how old its numbers are, if they were not read just now."""
    if age_s is not None:
        click.echo(
            f"As the beat sampled it {age_s:.0f} s ago, because there are many; --exact reads all now.", err=True
        )


def say_more(shown: int, count: int | None, what: str, which: str) -> None:
    """Tell beside a list that it is not all.

    Args:
        count: of all; ``None`` if it is not known, and more than are shown.
        what: is listed, in the singular.
        which: of them are shown.
    """
    if count is None or count > shown:
        of = "" if count is None else f" of {count:,}"
        click.echo(f"The {shown:,}{of} {plural(2, what)} {which}; --limit shows more.", err=True)


def first_of(rows: list[T], limit: int, what: str, which: str) -> list[T]:
    """Return the first rows of a list, and tell if there are more; see :func:`say_more`."""
    say_more(min(limit, len(rows)), len(rows), what, which)
    return rows[:limit]


def confirm(question: str, yes: bool) -> None:
    """Ask before something that cannot be undone.

    Raises:
        click.UsageError: standard input is not a terminal, and ``--yes`` was not given.
        click.Abort: the answer was no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Standard input is not a terminal; give --yes to confirm.")
    click.confirm(question, abort=True, err=True)


def delete_named(what: str, name: str, delete: Callable[[str], object], yes: bool, as_json: bool) -> None:
    """Delete something by its name after a confirmation, and report it."""
    confirm(f"Delete the {what} {name}?", yes)
    delete(name)
    print_done({"deleted": name}, f"Deleted the {what} {name}.", as_json)


class Bar(Protocol):
    """Counter that :func:`progress` yields."""

    def update(self, n_steps: int) -> None:
        """Advance by this number of steps."""
        ...


class _NoBar:
    def update(self, n_steps: int) -> None:
        pass


@contextlib.contextmanager
def progress(label: str, length: int | None) -> Iterator[Bar]:
    """A progress bar on stderr, if that is a terminal.

    Args:
        label: what is being done.
        length: the number of steps, if it is known.
    """
    if not sys.stderr.isatty():
        yield _NoBar()
        return
    nothing: Iterator[int] = iter(())
    with click.progressbar(nothing, length=length, label=label, file=sys.stderr, show_pos=True) as bar:
        yield bar
