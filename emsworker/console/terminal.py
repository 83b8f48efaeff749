"""Tables on a terminal, by rich: they fit its width, and have colors unless the user wants none."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from emsworker.core.ids import short_client
from emsworker.core.terminal_text import escape_control

from .cells import Row, cell_of, is_numeric, text_cell, titles_of
from .context_keys import NO_COLOR, WIDE

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

_GAP = 2
_FOLDED = 16  # a column of text can be made as narrow as this
_ENDLESS = 1 << 20
_NEEDED = frozenset({"value", "fix", "task", "error"})  # without them a row does not say what is the matter
_CLIENTS = frozenset({"client", "client_id", "leader"})

_WORDS = {
    "live": "green",
    "ok": "green",
    "done": "green",
    "running": "cyan",
    "claimed": "cyan",
    "waiting": "yellow",
    "retry": "yellow",
    "blocked": "yellow",
    "warning": "yellow",
    "failed": "yellow",
    "timeout": "yellow",
    "orphaned": "yellow",
    "expired": "red",
    "dead": "red",
    "dropped": "red",
    "rejected": "red",
    "error": "red",
    "no consumer": "red",
    "alarm": "red",
    "no consumer, alarm": "red",
    "paused": "yellow",
    "paused, alarm": "red",
}
_STATES = frozenset({"state", "lease", "severity", "outcome"})
_ALARMING: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "dead": (bool, "red"),
    "firing": (bool, "red"),
    "retries": (bool, "yellow"),
    "waiting": (bool, "yellow"),
    "paused": (bool, "yellow"),
    "ok": (lambda value: value is False, "red"),
    "running": (lambda value: value is False, "red"),
    "error": (bool, "red"),
}


def wide() -> bool:
    """True if the user has asked for full ids and all columns."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(WIDE))


def open_console(*, endless: bool = False) -> Console:
    """Return rich's console on standard output.

    Args:
        endless: do not fit lines into the terminal's width.
    """
    from rich.console import Console

    context = click.get_current_context(silent=True)
    plain = bool(os.environ.get("NO_COLOR")) or (context is not None and bool(context.meta.get(NO_COLOR)))
    return Console(
        file=sys.stdout,
        color_system=None if plain else "auto",
        highlight=False,
        markup=False,
        emoji=False,
        width=_ENDLESS if endless else None,
    )


def print_table(rows: Sequence[Row], columns: Sequence[str], spare: Sequence[str] = ()) -> None:
    """Print a list of things; see :func:`emsworker.cli.output.print_rows`."""
    console = open_console(endless=wide())
    table, hidden = make_table(rows, columns, spare, console.width, wide())
    if not _NEEDED.isdisjoint(hidden):
        _print_records(rows, columns)
        return
    console.print(table)
    if hidden:
        names = ", ".join(title.lower() for title in titles_of(hidden))
        text = f"Left out for want of width: {names}; --wide shows everything."
        click.echo(click.wrap_text(text, console.width), err=True)


def _print_records(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Print rows that are too wide for a table: the columns of each below each other, with an empty line between."""
    for number, row in enumerate(rows):
        if number:
            click.echo()
        print_properties({column: row[column] for column in columns})


def make_table(
    rows: Sequence[Row],
    columns: Sequence[str],
    spare: Sequence[str],
    width: int,
    full: bool = False,
    selected: int | None = None,
    folds: bool = False,
) -> tuple[Table, list[str]]:
    """Return a table, and the columns that it leaves out because the width does not suffice.

    Args:
        full: leave nothing out, and shorten nothing.
        selected: the row that is highlighted; then every row is one line, so that the table's height is known.
        folds: text has several lines nevertheless.
    """
    from rich.table import Table

    cells = {column: [_shown(column, row[column], full) for row in rows] for column in columns}
    folding = {one for one in columns if not is_numeric(rows, one) and _folds(one, cells[one])}
    fitting = None if full else _widths(cells, columns, folding, spare, width)
    widths: Mapping[str, int | None] = dict.fromkeys(columns) if fitting is None else fitting
    chosen = list(widths)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold", highlight=False)
    for column, title in zip(chosen, titles_of(chosen), strict=True):
        cut = selected is not None and not folds and column in folding
        table.add_column(
            title,
            justify="right" if is_numeric(rows, column) else "left",
            no_wrap=cut,
            overflow="ellipsis" if cut else "fold",
            width=widths[column],
        )
    for number, row in enumerate(rows):
        texts = [_styled(column, row[column], cells[column][number]) for column in chosen]
        table.add_row(*texts, style="reverse" if number == selected else None)
    return table, [column for column in columns if column not in chosen]


def print_properties(record: Row) -> None:
    """Print one thing: its properties below each other."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, _GAP, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in record.items():
        text = Text(escape_control(text_cell(name, value)), style=_style(name, value))
        table.add_row(name.removesuffix("_s").replace("_", " "), text)
    open_console(endless=wide()).print(table)


def _shown(column: str, value: Any, full: bool) -> str:
    if not full and column in _CLIENTS and isinstance(value, str):
        value = short_client(value)
    if not full and isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%SZ")
    return cell_of(column, value)


def _widths(
    cells: Mapping[str, list[str]], columns: Sequence[str], folding: Collection[str], spare: Sequence[str], width: int
) -> dict[str, int]:
    """Return the columns that fit, with their widths: text is folded, all else has its room or is left out."""
    from rich.cells import cell_len

    titles = dict(zip(columns, titles_of(columns), strict=True))
    wants = {one: max(map(cell_len, [titles[one], *cells[one]])) for one in columns}
    found = {one: max(len(titles[one]), _FOLDED) if one in folding else wants[one] for one in columns}
    for column in _least_wanted(columns, spare):
        if _total(found) <= width:
            break
        del found[column]
    growing = [one for one in found if found[one] < wants[one]]
    while growing and (room := width - _total(found)) > 0:
        for column in growing[:room]:
            found[column] += min(max(1, room // len(growing)), wants[column] - found[column])
        growing = [one for one in growing if found[one] < wants[one]]
    return found if len(found) > 1 else {one: min(need, width) for one, need in found.items()}


def _total(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1)


def _least_wanted(columns: Sequence[str], spare: Sequence[str]) -> list[str]:
    """Return the columns in the order in which they are left out; one remains, an id if there is one."""
    first, *others = (one for one in columns if one not in spare)
    if "id" not in others:
        return [*spare, *reversed(others)]
    return [*spare, *(one for one in reversed(others) if one != "id"), first]


def _folds(column: str, cells: Sequence[str]) -> bool:
    """True if a column is of text that can be broken: not of numbers, times, or ids that one copies."""
    copied = column in ("id", "at", *_CLIENTS) or column.endswith("_at")
    return not copied and max(map(len, cells), default=0) > _FOLDED


def _styled(column: str, value: Any, text: str) -> RenderableType:
    from rich.text import Text

    return Text(text, style=_style(column, value))


def _style(column: str, value: Any) -> str:
    if column in _STATES:
        return _WORDS.get(str(value), "")
    alarms, style = _ALARMING.get(column, (bool, ""))
    return style if value is not None and alarms(value) else ""
