"""A report: its tables and charts, and how their values are shown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

from emsworker.core.errors import EmsError

_MOST_ROWS = 100_000


class ReportTooLarge(EmsError):
    """A table has more rows than a report can show."""


@dataclass(frozen=True)
class Table:
    """A part of a report.

    Attributes:
        name: a plain word; also the name of its file if it gets one.
        title: the heading above it.
        columns: their names, in order.
        rows: tuples with a value for each column.
        schema: Spark's schema if the rows come from a data frame.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]
    schema: Any = None

    @classmethod
    def of(cls, name: str, title: str, frame: Any) -> Table:
        """Make a table of all rows of a data frame, in its order.

        Raises:
            ReportTooLarge: the data frame has more than 100,000 rows.
        """
        rows = [tuple(map(_in_utc, row)) for row in frame.limit(_MOST_ROWS + 1).collect()]
        if len(rows) > _MOST_ROWS:
            raise ReportTooLarge(f"table {name!r} has more than {_MOST_ROWS} rows; narrow it by time, topic or --limit")
        return cls(name, title, tuple(frame.columns), rows, frame.schema)

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries by column name."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@dataclass(frozen=True)
class Chart:
    """A chart of a report; only the HTML page shows it.

    Attributes:
        title: the heading above it, with the unit.
        kind: ``bar`` or ``line``.
        labels: the labels of the horizontal axis, in order.
        series: name -> a number for each label, or ``None`` for a gap.
    """

    title: str
    kind: str
    labels: Sequence[str]
    series: Mapping[str, Sequence[float | None]]


@dataclass(frozen=True)
class JobReport:
    """Tables and charts under a title."""

    title: str
    tables: Sequence[Table]
    charts: Sequence[Chart] = field(default=())


# -- values ------------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Convert a value to what JSON can hold: times as ISO 8601 in UTC, bytes as text."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="backslashreplace")
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def shown(value: Any) -> str:
    """Format a value for people."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{round(value, 3) + 0.0:.3f}".rstrip("0").rstrip(".")  # adding 0.0 takes the sign off of -0.0
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    value = plain(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)


def _in_utc(value: Any) -> Any:
    """Convert PySpark's values: nested rows to dictionaries, and naive local times to UTC."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if hasattr(value, "asDict"):
        return {name: _in_utc(one) for name, one in value.asDict().items()}
    return [_in_utc(one) for one in value] if isinstance(value, list) else value
