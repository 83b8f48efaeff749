"""``ems top``."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import time
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING

import click

from emsworker.extending.console import (
    COUNT,
    DURATION,
    CommandFailure,
    WrongUsage,
    common_options,
    open_databases,
    print_rows,
    read_duration,
    say_more,
)
from emsworker.extending.values import escape_control

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from emsworker.extending.console import Row
    from emsworker.top.screens import Reader, Screen

_BETWEEN_S = 1.0
_LINES = 5
_SHOWN_S = 0.25
_REST = 4.0  # times that a reading took: of many groups, it takes long
_SORTS = ("topic", "group", "lag", "in_rate", "out_rate", "oldest", "running", "retries", "dead")
_HELP = "q quit  enter open  esc back  / filter  s sort  r reverse  space pause  c clients  t tasks"


@click.command()
@click.option("--once", is_flag=True, help="Print the groups once and end; without a terminal this is so anyway.")
@click.option(
    "--interval",
    default="2s",
    show_default=True,
    metavar="DURATION",
    callback=read_duration,
    help=f"The time between two readings: {DURATION}.",
)
@click.option("--sort", type=click.Choice(_SORTS), default="lag", show_default=True, help="The column to sort by.")
@click.option(
    "--limit", type=COUNT, default=1000, show_default=True, help="Maximum number of rows; live, of those by lag."
)
@click.option("--filter", "wanted", default="", metavar="TEXT", help="Only groups with this text in their row.")
@common_options
def top(once: bool, interval: float, sort: str, limit: int, wanted: str, as_json: bool) -> None:
    """Watch groups live: state, lag, rates, oldest, running, retries and dead letters, and the clients.

    \b
    up, down, enter  select a group, open it; there, select a message and open its trace
    esc              go back
    /                show only rows with a text, until esc
    s, r             sort by the next column, in the reverse order
    space            pause and go on
    c                clients with their leases and their progress
    t                tasks: what waits and runs, failures, percentiles, the last error
    q                quit

    Of several servers (EMS_SERVERS) all groups are shown, with a column SERVER; --server shows one.

    IN/S and OUT/S are messages a second since the last reading: sent to the topic, and finished by the group. Retries
    and dead letters of a group are counted up to 10,000, shown as 10,000+; LAG contains the retries.
    """  # noqa: D301 - click wants the character itself
    from emsworker.top.screens import GroupsScreen, Reader

    if interval < _SHOWN_S:
        raise click.BadParameter(f"{interval:g} s is too short; at least {_SHOWN_S:g} s.", param_hint="--interval")
    screen = GroupsScreen("oldest_s" if sort == "oldest" else sort, wanted, limit)
    live = not (once or as_json) and _is_terminal()
    if live:
        _require_rich()
    reader = Reader(open_databases())
    if live:
        _watch(reader, screen, interval)
        return
    screen.read_now(reader)
    if reader.is_fresh:  # rates are of the time between two readings; the beat's samples have theirs
        time.sleep(_BETWEEN_S)
        screen.read_now(reader)
    empty = f"No group has {wanted!r} in its row." if screen.count else "There is no group yet."
    rows = screen.rows()
    say_more(min(limit, len(rows)), len(rows) if wanted else screen.count, "group", f"that are first by {sort}")
    print_rows(rows[:limit], screen.columns, as_json, empty, spare=screen.spare)
    if reader.away:
        raise CommandFailure([f"server {name}: {error}" for name, error in reader.away.items()])


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _require_rich() -> None:
    from emsworker.extending.declaration import require
    from emsworker.extending.errors import ExtraMissing

    try:
        require("cli", "`ems top` on a terminal")
    except ExtraMissing as error:
        raise WrongUsage([f"{error}; --once prints plain text"]) from None


def _watch(reader: Reader, screen: Screen, interval_s: float) -> None:
    from rich.live import Live

    from emsworker.extending.console import open_console
    from emsworker.top.keys import Keys

    console = open_console()
    viewer = Viewer(reader, screen, interval_s)
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # the shell would get a terminal in the wrong mode
    with (
        contextlib.suppress(KeyboardInterrupt, EOFError),
        Keys() as keys,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        key: str | None = None
        while viewer.take(key):
            viewer.read_if_due()
            live.update(viewer.draw(*console.size), refresh=True)
            key = keys.read(min(viewer.wait_s(), _SHOWN_S))  # the window may have changed meanwhile


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


class Viewer:
    """Stack of screens, what keys do to it, and its picture.

    Args:
        reader: reads the stream.
        screen: the first screen.
        interval_s: seconds between two readings.
    """

    def __init__(self, reader: Reader, screen: Screen, interval_s: float) -> None:
        self._reader, self._interval_s = reader, interval_s
        self._screens = [screen]
        self._due = 0.0
        self._paused = False
        self._typing = False
        self._page = 10
        self._read_at: datetime | None = None

    @property
    def screen(self) -> Screen:
        """The screen that is shown."""
        return self._screens[-1]

    def wait_s(self) -> float:
        """Return the seconds until the next reading."""
        return _SHOWN_S if self._paused else max(0.0, self._due - time.monotonic())

    def read_if_due(self) -> None:
        """Read the screen anew if its interval has passed."""
        if (self._paused and self._due) or time.monotonic() < self._due:
            return
        first, began = self._read_at is None, time.monotonic()
        self.screen.refresh(self._reader)
        self._read_at, now = datetime.now(UTC), time.monotonic()
        pause_s = min(_BETWEEN_S, self._interval_s) if first else self._interval_s
        self._due = now + max(pause_s, _REST * (now - began))

    def take(self, key: str | None) -> bool:
        """Do what a key means; returns false if that is to quit."""
        if key is None:
            return True
        if self._typing:
            self._type(key)
            return True
        if key == "q":
            return False
        action = {
            "up": lambda: self.screen.move(-1),
            "k": lambda: self.screen.move(-1),
            "down": lambda: self.screen.move(1),
            "j": lambda: self.screen.move(1),
            "page up": lambda: self.screen.move(-self._page),
            "page down": lambda: self.screen.move(self._page),
            "enter": lambda: self._open(self.screen.opened()),
            "right": lambda: self._open(self.screen.opened()),
            "escape": self._back,
            "left": self._back,
            "backspace": self._back,
            "/": self._begin_typing,
            "s": self._sort_next,
            "r": self._reverse,
            " ": self._pause,
            "c": self._open_clients,
            "t": self._open_tasks,
        }.get(key)
        if action is not None:
            action()
        return True

    def _type(self, key: str) -> None:
        if key in ("enter", "escape"):
            self._typing, self._due = False, 0.0  # a filter may need rows that were not read
            if key == "escape":
                self.screen.wanted = ""
        elif key == "backspace":
            self.screen.wanted = self.screen.wanted[:-1]
        elif len(key) == 1 and key.isprintable():
            self.screen.wanted += key

    def _begin_typing(self) -> None:
        self._typing, self.screen.wanted = True, ""

    def _sort_next(self) -> None:
        self.screen.sort_next()
        self._due = 0.0  # another order may need rows that were not read

    def _reverse(self) -> None:
        self.screen.descending = not self.screen.descending
        self._due = 0.0

    def _pause(self) -> None:
        self._paused = not self._paused

    def _open_clients(self) -> None:
        from emsworker.top.screens import ClientsScreen

        if not isinstance(self.screen, ClientsScreen):
            self._open(ClientsScreen())

    def _open_tasks(self) -> None:
        from emsworker.top.tasks import TasksScreen

        if not isinstance(self.screen, TasksScreen):
            self._open(TasksScreen())

    def _open(self, screen: Screen | None) -> None:
        if screen is not None:
            self._screens.append(screen)
            self._due = 0.0

    def _back(self) -> None:
        if self.screen.wanted:
            self.screen.wanted, self._due = "", 0.0
        elif len(self._screens) > 1:
            self._screens.pop()
            self._due = 0.0

    def draw(self, width: int, height: int) -> RenderableType:
        """Return the picture of the screen."""
        from rich.console import Group
        from rich.text import Text

        screen, rows = self.screen, self.screen.rows()
        self._page = max(1, height - _LINES)
        table = self._table(rows, width, self._page)
        head = Text(no_wrap=True, overflow="ellipsis")
        head.append(screen.title, "bold")
        head.append(f"  {self._state()}")
        facts = Text(escape_control(screen.facts), no_wrap=True, overflow="ellipsis")
        foot = (
            Text(escape_control(f"error: {screen.problem}"), "red")
            if screen.problem
            else Text(self._order(len(rows)), "dim")
        )
        foot.no_wrap, foot.overflow = True, "ellipsis"
        keys = Text(_HELP, "dim", no_wrap=True, overflow="ellipsis")
        return Group(head, facts, table, foot, keys)

    def _table(self, rows: Sequence[Row], width: int, lines: int) -> Table:
        """Return the rows around the selected one that fit into this many lines, below the headers."""
        from rich.console import Console

        from emsworker.extending.console import make_table

        screen, count = self.screen, lines
        console = Console(file=io.StringIO(), width=width, height=lines)
        while True:
            first = max(0, min(screen.selected - count // 2, len(rows) - count))
            table, _ = make_table(
                rows[first : first + count],
                screen.columns,
                screen.spare,
                width,
                selected=screen.selected - first,
                folds=screen.folds,
            )
            taken = len(console.render_lines(table)) - 1 if screen.folds else 0
            if taken <= lines or count == 1:
                return table
            count = max(1, min(count - 1, len(rows) - 1))

    def _state(self) -> str:
        at = f"{self._read_at:%H:%M:%SZ}" if self._read_at is not None else "not read yet"
        return f"{at} PAUSED" if self._paused else at

    def _order(self, count: int) -> str:
        screen = self.screen
        sorted_by = (
            f", by {screen.sort.removesuffix('_s')}{', descending' if screen.descending else ''}" if screen.sort else ""
        )
        wanted = f", with {screen.wanted!r}" if screen.wanted or self._typing else ""
        return f"{count} of {screen.count}{sorted_by}{wanted}{' (type, then enter)' if self._typing else ''}"
