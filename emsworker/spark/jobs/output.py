"""Reports, and writing them: on a terminal, as JSON, CSV or Parquet, or as one HTML page."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from emsworker.core.errors import ConfigError, EmsError, Problem

FORMATS = ("table", "json", "csv", "parquet", "html")
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


# -- writing -----------------------------------------------------------------------------------------------------------


def write(report: JobReport, format: str, path: Path, summary: Mapping[str, Any]) -> list[Path]:
    """Write a report to files.

    Args:
        format: one of ``csv``, ``parquet`` (both: a folder with a file for each of several tables), ``json``, ``html``,
            ``table``.
        path: the file, or the folder.
        summary: part of JSON and HTML.

    Returns:
        the paths of the files.

    Raises:
        ConfigError: the path cannot be written.
    """
    try:
        return _write(report, format, path, summary)
    except OSError as error:
        fix = f"cannot be written ({error.strerror}); name a file in a folder that you may write to"
        raise ConfigError([Problem("--output", str(path), fix)]) from None


def _write(report: JobReport, format: str, path: Path, summary: Mapping[str, Any]) -> list[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    if format in ("csv", "parquet"):
        writer: Callable[[Table, Path], None] = _write_csv if format == "csv" else _write_parquet
        if len(report.tables) == 1:
            writer(report.tables[0], path)
            return [path]
        path.mkdir(exist_ok=True)
        paths = [path / f"{table.name}.{format}" for table in report.tables]
        for table, one in zip(report.tables, paths, strict=True):
            writer(table, one)
        return paths
    if format == "html":
        from emsworker.spark.jobs.page import page

        text = page(report, summary)
    else:
        text = as_json(report, summary) if format == "json" else as_text(report)
    path.write_text(text + "\n", encoding="utf-8")
    return [path]


def as_json(report: JobReport, summary: Mapping[str, Any]) -> str:
    """Format the summary and each table, a list of objects, as JSON."""
    tables = {table.name: plain(table.records()) for table in report.tables}
    return json.dumps({**plain(summary), "tables": tables}, indent=2, ensure_ascii=False)


def as_text(report: JobReport) -> str:
    """Format the tables as aligned text for a terminal."""
    return "\n\n".join(_text(table) for table in report.tables)


def _text(table: Table) -> str:
    if not table.rows:
        return f"{table.title}\n  (nothing)"
    cells = [[column.replace("_", " ").upper() for column in table.columns]]
    cells += [[_line(shown(value)) for value in row] for row in table.rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = [all(isinstance(v, int | float | None) for v in column) for column in zip(*table.rows, strict=True)]
    lines = [
        "  ".join(
            text.rjust(w) if r else text.ljust(w) for text, w, r in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in cells
    ]
    return "\n".join([table.title, *lines])


def _line(text: str) -> str:
    """Make one line of at most 80 characters."""
    text = text.replace("\n", " | ")
    return text if len(text) <= 80 else f"{text[:77]}..."


def _write_csv(table: Table, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table.columns)
        for row in table.rows:
            values = [plain(value) for value in row]
            writer.writerow([json.dumps(v, ensure_ascii=False) if isinstance(v, dict | list) else v for v in values])


def _write_parquet(table: Table, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = None
    if table.schema is not None:
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(table.schema, timezone="UTC")
    pq.write_table(pa.Table.from_pylist(table.records(), schema), path)


def _in_utc(value: Any) -> Any:
    """Convert PySpark's values: nested rows to dictionaries, and naive local times to UTC."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if hasattr(value, "asDict"):
        return {name: _in_utc(one) for name, one in value.asDict().items()}
    return [_in_utc(one) for one in value] if isinstance(value, list) else value
