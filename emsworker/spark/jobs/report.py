"""A report: its tables and charts, and how their values are shown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from emsworker.extending.errors import EmsError

MAX_ROWS = 100_000
"""Rows of a table at most."""


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
        kinds: their types, as Spark writes them, if they are known.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]
    kinds: Mapping[str, str] | None = None

    @classmethod
    def of(cls, name: str, title: str, kinds: Mapping[str, str], rows: Iterable[tuple[Any, ...]]) -> Table:
        """Make a table of rows that an engine computed; its numbers are rounded to three digits.

        Args:
            kinds: the columns, in order, with their types.

        Raises:
            ReportTooLarge: there are more than 100,000 rows.
        """
        makers = [{"double": _rounded, "timestamp": _in_utc}.get(kind) for kind in kinds.values()]
        found = [
            tuple(value if make is None else make(value) for value, make in zip(row, makers, strict=True))
            for row in rows
        ]
        if len(found) > MAX_ROWS:
            raise ReportTooLarge(f"table {name!r} has more than {MAX_ROWS} rows; narrow it by time, topic or --limit")
        return cls(name, title, tuple(kinds), found, kinds)

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


def _rounded(value: float | None) -> float | None:
    """Round to three digits as people do, half away from zero."""
    if value is None:
        return None
    return float(Decimal(repr(float(value))).quantize(Decimal("0.001"), ROUND_HALF_UP))


def _in_utc(value: Any) -> Any:
    """Convert times to UTC; PySpark's are naive, in the zone of this process."""
    return value.astimezone(UTC) if isinstance(value, datetime) else value
