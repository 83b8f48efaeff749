"""Writing of reports: on a terminal, as JSON, CSV or Parquet, or as one HTML page."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from emsworker.arrow.columns import schema_of
from emsworker.extending.errors import ConfigError, Problem
from emsworker.spark.jobs.page import page
from emsworker.spark.jobs.report import JobReport, Table, plain, shown

FORMATS = ("table", "json", "csv", "parquet", "html")


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
    """Format the tables as aligned text; nothing is cut, since only a terminal has a width."""
    return "\n\n".join(_text(table) for table in report.tables)


def _text(table: Table) -> str:
    if not table.rows:
        return f"{table.title}\n  (nothing)"
    cells = [[column.replace("_", " ").upper() for column in table.columns]]
    cells += [[shown(value).replace("\n", " | ") for value in row] for row in table.rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = [all(isinstance(v, int | float | None) for v in column) for column in zip(*table.rows, strict=True)]
    lines = [
        "  ".join(
            text.rjust(w) if r else text.ljust(w) for text, w, r in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in cells
    ]
    return "\n".join([table.title, *lines])


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

    schema = None if table.kinds is None else schema_of(table.kinds)
    pq.write_table(pa.Table.from_pylist(table.records(), schema), path)
