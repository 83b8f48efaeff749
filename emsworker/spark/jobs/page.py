"""A report as one self-contained HTML page: styles and charts are part of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from emsworker.spark.jobs.output import Chart, JobReport, Table, shown

_COLORS = ("#2f6fb0", "#d9792b", "#3a9459", "#b8433f", "#7c5aa6", "#8a6d4b", "#c264a4", "#6b7280")
_WIDTH, _HEIGHT = 860, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 12, 12, 58
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem }
body { color: #222; background: #fff }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
table { border-collapse: collapse; font-size: .9rem } .wide { overflow-x: auto }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top }
td { white-space: pre-wrap }
th { border-bottom: 2px solid #999 } td.number, th.number { text-align: right; font-variant-numeric: tabular-nums }
svg { max-width: 100%; height: auto } svg text { font: 11px system-ui, sans-serif; fill: currentColor }
.key { margin-right: 1.2rem } .key i { display: inline-block; width: .8rem; height: .8rem; margin-right: .35rem }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181a1f } th, td { border-color: #444 } }
"""


def page(report: JobReport, summary: Mapping[str, Any]) -> str:
    """Render a report and its summary as HTML."""
    facts = Table("summary", "Summary", ("what", "value"), [(name, value) for name, value in summary.items()])
    parts = [_table(facts), *(_chart(chart) for chart in report.charts), *(_table(table) for table in report.tables)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(report.title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{escape(report.title)}</h1>\n" + "\n".join(parts) + "\n</body></html>"
    )


def _table(table: Table) -> str:
    if not table.rows:
        return f"<h2>{escape(table.title)}</h2><p>Nothing.</p>"
    numbers = [all(isinstance(v, int | float | None) for v in column) for column in zip(*table.rows, strict=True)]
    marks = [' class="number"' if number else "" for number in numbers]
    head = "".join(f"<th{mark}>{escape(name)}</th>" for name, mark in zip(table.columns, marks, strict=True))
    body = "\n".join(
        "<tr>"
        + "".join(f"<td{mark}>{escape(shown(value))}</td>" for value, mark in zip(row, marks, strict=True))
        + "</tr>"
        for row in table.rows
    )
    return (
        f'<h2>{escape(table.title)}</h2><div class="wide"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


# -- charts ------------------------------------------------------------------------------------------------------------


def _chart(chart: Chart) -> str:
    values = [value for series in chart.series.values() for value in series if value is not None]
    if not values:
        return f"<h2>{escape(chart.title)}</h2><p>Nothing.</p>"
    top = _ceiling(max(*values, 0.0))
    marks = _bars(chart, top) if chart.kind == "bar" else _lines(chart, top)
    keys = "".join(
        f'<span class="key"><i style="background:{_color(number)}"></i>{escape(name)}</span>'
        for number, name in enumerate(chart.series)
    )
    return (
        f'<h2>{escape(chart.title)}</h2><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img" '
        f'aria-label="{escape(chart.title)}">{_grid(top)}{_labels(chart.labels)}{marks}</svg><div>{keys}</div>'
    )


def _color(number: int) -> str:
    return _COLORS[number % len(_COLORS)]


def _ceiling(value: float) -> float:
    """Round up to a round number."""
    if value <= 0:
        return 1.0
    unit: float = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in (1, 2, 2.5, 5, 10) if step * unit >= value * 0.999999)


def _x(place: float, count: int) -> float:
    """Return the middle of a label's share of the width."""
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (place + 0.5) / count


def _y(value: float, top: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - max(value, 0.0) / top)


def _grid(top: float) -> str:
    lines = []
    for step in range(5):
        value = top * step / 4
        y = _y(value, top)
        lines.append(
            f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="currentColor" opacity=".18"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(value)}</text>'
        )
    return "".join(lines)


def _short(value: float) -> str:
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:.3g}"


def _labels(labels: Sequence[str]) -> str:
    """Draw at most a dozen labels, slanted so that they do not overlap."""
    step = max(1, math.ceil(len(labels) / 12))
    y = _HEIGHT - _BOTTOM + 16
    return "".join(
        f'<text x="{_x(place, len(labels)):.1f}" y="{y}" text-anchor="end" '
        f'transform="rotate(-25 {_x(place, len(labels)):.1f} {y})">{escape(label[:24])}</text>'
        for place, label in enumerate(labels)
        if place % step == 0
    )


def _bars(chart: Chart, top: float) -> str:
    count = len(chart.labels)
    width = (_WIDTH - _LEFT - _RIGHT) / count * 0.8 / len(chart.series)
    marks = []
    for number, (name, values) in enumerate(chart.series.items()):
        for place, value in enumerate(values):
            if value is not None:
                x = _x(place, count) + (number - len(chart.series) / 2) * width
                y = _y(value, top)
                marks.append(
                    f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_y(0, top) - y:.1f}" '
                    f'fill="{_color(number)}"><title>{_hint(chart, name, place, value)}</title></rect>'
                )
    return "".join(marks)


def _lines(chart: Chart, top: float) -> str:
    count = len(chart.labels)
    marks = []
    for number, (name, values) in enumerate(chart.series.items()):
        for run in _runs(values):
            points = " ".join(f"{_x(place, count):.1f},{_y(value, top):.1f}" for place, value in run)
            marks.append(f'<polyline points="{points}" fill="none" stroke="{_color(number)}" stroke-width="2"/>')
            marks += [
                f'<circle cx="{_x(place, count):.1f}" cy="{_y(value, top):.1f}" r="2.5" fill="{_color(number)}">'
                f"<title>{_hint(chart, name, place, value)}</title></circle>"
                for place, value in run
            ]
    return "".join(marks)


def _hint(chart: Chart, name: str, place: int, value: float) -> str:
    return escape(f"{name}, {chart.labels[place]}: {shown(value)}")


def _runs(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """Split a series into runs without gaps."""
    runs: list[list[tuple[int, float]]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((place, value))
    return [run for run in runs if run]
