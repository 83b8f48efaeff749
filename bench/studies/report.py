"""Findings: to Markdown and to JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from bench.studies.finding import Finding, StudySize


def table(findings: Sequence[Finding]) -> str:
    """One table of medians for each study, and how its first figure compares with that of its first case."""
    return "\n\n".join(_study(list(rows)) for _, rows in groupby(findings, lambda row: row.line))


def _study(rows: list[Finding]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row.figures))
    head = [f"| {rows[0].line} | {' | '.join(names)} | of the first |", f"| --- |{' ---: |' * (len(names) + 1)}"]
    return "\n".join([*head, *(_line(row, rows[0], names) for row in rows)])


def _line(row: Finding, first: Finding, names: list[str]) -> str:
    cells = [_number(row.median(name)) for name in names]
    ours, base = row.median(names[0]), first.median(names[0])
    return f"| {row.case} | {' | '.join(cells)} | {f'{ours / base:.2f}' if ours is not None and base else ''} |"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def as_json(findings: Iterable[Finding], size: StudySize) -> dict[str, Any]:
    """Every repeat of every case."""
    return {"studies_size": asdict(size), "findings": [asdict(row) for row in findings]}


def load(file: Path) -> list[Finding]:
    """The findings of a JSON file."""
    return [Finding(**found) for found in json.loads(file.read_text())["findings"]]
