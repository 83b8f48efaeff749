"""Aligned tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from emsworker.core.extras import hint_if_missing
from emsworker.core.terminal_text import escape_control, escape_json

from .cells import Row, cell_of, is_numeric, plain, text_cell, titles_of
from .collecting import PrintedList, collected

_MOST_INDENTED = 4 << 20


def shown_priority(headers: Mapping[str, str]) -> int | str:
    """The priority of a message with these headers; the header's text if it is none."""
    from emsworker.core.errors import DecodeError
    from emsworker.core.model import PRIORITY_HEADER, priority_of

    try:
        return priority_of(headers)
    except DecodeError:
        return headers[PRIORITY_HEADER]


def text_of(raw: str | bytes | None) -> str | None:
    """A key, tag or body as text; bytes that are no text are written as escapes."""
    return raw.decode(errors="backslashreplace") if isinstance(raw, bytes) else raw


def print_json(value: Any) -> None:
    """Anything as indented JSON."""
    if (everything := collected()) is not None:
        everything.add_value(value)
        return
    click.echo(escape_json(_json_text(value)))


def _json_text(value: Any) -> str:
    """Return JSON, indented unless that makes it too long: 600 kB that are nested 300 deep become 180 MB."""
    parts, size = [], 0
    for part in json.JSONEncoder(indent=2, default=plain, ensure_ascii=False).iterencode(value):
        parts.append(part)
        size += len(part)
        if size > _MOST_INDENTED:
            return json.dumps(value, default=plain, ensure_ascii=False)
    return "".join(parts)


def cut_body(body: Any) -> Any:
    """A body as far as a record shows it to people; what is left out is told on standard error."""
    from emsworker.core.preview import TEXT_BYTES

    text = text_cell("body", body)
    if len(text) <= TEXT_BYTES:
        return body
    click.echo("The body is cut after 64 KB; --json prints all that is decoded, --raw all that is stored.", err=True)
    return text[:TEXT_BYTES]


def print_body(raw: bytes) -> None:
    """A body as it is stored, byte by byte, to standard output."""
    sys.stdout.flush()
    sys.stdout.buffer.write(raw)
    sys.stdout.buffer.flush()


def print_gap() -> None:
    """An empty line between two tables or records; in the answer of several servers, one stands there anyway."""
    if collected() is None:
        click.echo()


def print_done(record: Row, sentence: str, as_json: bool) -> None:
    """The outcome of a change: a sentence, or a record as JSON."""
    if (everything := collected()) is not None:
        sentence = f"{everything.server}: {sentence}"
    if as_json:
        print_record(record, as_json)
    else:
        click.echo(sentence)


def print_rows(
    rows: Sequence[Row], columns: Sequence[str], as_json: bool, empty: str, *, spare: Sequence[str] = ()
) -> None:
    """A list of things.

    Args:
        rows: each with all that is known; JSON shows everything.
        columns: which of it a table shows.
        empty: what to say instead of an empty table.
        spare: columns that a narrow terminal leaves out, the first of them first.
    """
    if (everything := collected()) is not None:
        everything.add_rows(PrintedList(list(rows), columns, as_json, empty, spare))
    elif as_json:
        print_json(list(rows))
    elif not rows:
        click.echo(empty, err=True)
    elif draws_tables():
        from .terminal import print_table

        print_table(rows, columns, spare)
    else:
        _print_table(rows, columns)


def draws_tables() -> bool:
    """True if tables are made for a terminal: standard output is one, and rich is installed."""
    return sys.stdout.isatty() and hint_if_missing("cli") is None


def _print_table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    titles = titles_of(columns)
    cells = [[cell_of(column, row[column]) for column in columns] for row in rows]
    widths = [max(len(line[number]) for line in [titles, *cells]) for number in range(len(columns))]
    right = [is_numeric(rows, column) for column in columns]
    for line in [titles, *cells]:
        padded = [
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ]
        click.echo("  ".join(padded).rstrip())


def print_record(record: Row, as_json: bool) -> None:
    """One thing: its properties below each other."""
    if as_json:
        print_json(record)
        return
    if (everything := collected()) is not None:
        everything.add_record(record)
        return
    if draws_tables():
        from .terminal import print_properties

        print_properties(record)
        return
    width = max(len(name) for name in record)
    for name, value in record.items():
        title = name.removesuffix("_s").replace("_", " ")
        text = text_cell(name, value)
        first, *rest = escape_control(text).splitlines() or [""]
        click.echo(f"{title.ljust(width)}  {first}".rstrip())
        for line in rest:
            click.echo(f"{' ' * width}  {line}")
