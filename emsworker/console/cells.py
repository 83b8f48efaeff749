"""The texts of a table's cells and headers, for a terminal and for plain output."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from emsworker.core.durations import format_duration
from emsworker.core.terminal_text import escape_all_control
from emsworker.core.times import NO_TIME

Row = Mapping[str, Any]

_TITLES = {"in_rate": "IN/S", "out_rate": "OUT/S"}


def titles_of(columns: Sequence[str]) -> list[str]:
    """The headers of a table's columns."""
    return [_TITLES.get(column) or column.removesuffix("_s").replace("_", " ").upper() for column in columns]


def is_numeric(rows: Sequence[Row], column: str) -> bool:
    """True if a column holds numbers only."""
    return all(_is_number(row[column]) for row in rows)


def cell_of(column: str, value: Any) -> str:
    """The text of a value in one line of a table; control characters are written as escapes."""
    return escape_all_control(text_cell(column, value))


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def text_cell(column: str, value: Any) -> str:
    """The text of a value, which may have several lines."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if column.endswith("_s") and isinstance(value, (int, float)):
        # Of two readings of a clock the second may be the earlier one by a hair: no age is negative.
        return format_duration(max(0.0, round(value, 3 if value < 10 else 0)))
    if isinstance(value, datetime):
        return "unknown" if value == NO_TIME else value.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    if isinstance(value, (dict, list, tuple)):
        return json.dumps(value, default=plain, ensure_ascii=False)
    return str(value)


def plain(value: Any) -> Any:
    """Return a value as one that JSON has: a time as text, an object as its fields."""
    if isinstance(value, datetime):
        return None if value == NO_TIME else value.isoformat()
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)
