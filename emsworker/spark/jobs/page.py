"""A report as one self-contained HTML page: styles and charts are part of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

from emsworker.spark.jobs.report import Chart, JobReport, Table, shown

_COLORS = ("#2f6fb0", "#d9792b", "#3a9459", "#b8433f", "#7c5aa6", "#8a6d4b", "#c264a4", "#6b7280")
_WIDTH, _PLOT = 860, 220
_LEFT, _RIGHT, _TOP = 70, 12, 12
_LONGEST, _LETTER = 28, 6.2  # letters of a label, and the width of one
_SLANT = math.radians(25)
_WIDE = 50  # the ratio of values from which the axis is logarithmic
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: min(90rem, 94vw); padding: 0 1rem }
body { color: #222; background: #fff }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
table { border-collapse: collapse; font-size: .9rem } .wide { overflow-x: auto }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top }
td { white-space: pre-wrap; overflow-wrap: anywhere; min-width: 3rem; max-width: 32rem }
td.number, th { white-space: nowrap }
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
        f"{_tag('title', escape(report.title))}<style>{_STYLE}</style></head>\n"
        f"<body>{_tag('h1', escape(report.title))}\n" + "\n".join(parts) + "\n</body></html>"
    )


def _tag(name: str, *content: str, **attributes: object) -> str:
    """Return an element; ``_`` in the name of an attribute stands for ``-``, floats get one digit."""
    parts = [name]
    for key, value in attributes.items():
        text = f"{value:.1f}" if isinstance(value, float) else escape(str(value))
        parts.append(f'{key.rstrip("_").replace("_", "-")}="{text}"')
    return f"<{' '.join(parts)}>{''.join(content)}</{name}>"


def _table(table: Table) -> str:
    title = _tag("h2", escape(table.title))
    if not table.rows:
        return f"{title}<p>Nothing.</p>"
    numbers = [all(isinstance(v, int | float | None) for v in column) for column in zip(*table.rows, strict=True)]
    marks = [{"class_": "number"} if number else {} for number in numbers]

    def row(tag: str, texts: Iterable[str]) -> str:
        return _tag("tr", *(_tag(tag, escape(text), **mark) for text, mark in zip(texts, marks, strict=True)))

    body = "\n".join(row("td", map(_grouped, values)) for values in table.rows)
    return title + _tag(
        "div",
        _tag("table", _tag("thead", row("th", table.columns)), "\n", _tag("tbody", body)),
        class_="wide",
    )


def _grouped(value: Any) -> str:
    """Format a value, numbers with separated thousands."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return shown(value)
    whole, dot, rest = shown(value).partition(".")
    return f"{int(whole):,}{dot}{rest}"


# -- charts ------------------------------------------------------------------------------------------------------------


def _chart(chart: Chart) -> str:
    title = _tag("h2", escape(chart.title))
    values = [value for series in chart.series.values() for value in series if value is not None]
    if not values:
        return f"{title}<p>Nothing.</p>"
    axis = Axis(values)
    longest = max(min(len(label), _LONGEST) for label in chart.labels) * _LETTER
    # A slanted label ends below its mark and begins to the left of it, for the first one perhaps beyond the edge.
    margin = max(0.0, len(_cut(chart.labels[0])) * _LETTER * math.cos(_SLANT) - _x(0, len(chart.labels)))
    height = _TOP + _PLOT + 24 + longest * math.sin(_SLANT)
    marks = _bars(chart, axis) if chart.kind == "bar" else _lines(chart, axis)
    keys = (
        _tag("span", _tag("i", style=f"background:{_color(number)}"), escape(name), class_="key")
        for number, name in enumerate(chart.series)
    )
    view = f"{-margin:.0f} 0 {_WIDTH + margin:.0f} {height:.0f}"
    box = {"viewBox": view, "width": round(_WIDTH + margin), "role": "img", "aria_label": chart.title}
    return title + _tag("svg", *_grid(axis), *_labels(chart.labels), *marks, **box) + _tag("div", *keys)


def _color(number: int) -> str:
    return _COLORS[number % len(_COLORS)]


class Axis:
    """The vertical axis: linear from 0, or logarithmic if the values are far apart and none is 0 or less.

    Attributes:
        ticks: where it has lines.
    """

    def __init__(self, values: Sequence[float]) -> None:
        least, most = min(values), max(values)
        self._is_log = least > 0 and most / least >= _WIDE
        if self._is_log:
            low, high = math.floor(math.log10(least) - 0.1), math.ceil(math.log10(most))  # the least is seen, too
            self.ticks = [10.0**power for power in range(low, high + 1)]
        else:
            self.ticks = [_ceiling(max(most, 0.0)) * step / 4 for step in range(5)]

    def y(self, value: float) -> float:
        """Return the height of a value on the page."""
        place, low, high = (math.log10(one) if self._is_log else one for one in (value, self.ticks[0], self.ticks[-1]))
        return _TOP + _PLOT * (1 - max(place - low, 0.0) / (high - low))


def _ceiling(value: float) -> float:
    """Round up to a round number."""
    if value <= 0:
        return 1.0
    unit: float = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in (1, 2, 2.5, 5, 10) if step * unit >= value * 0.999999)


def _x(place: float, count: int) -> float:
    """Return the middle of a label's share of the width."""
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (place + 0.5) / count


def _grid(axis: Axis) -> Iterator[str]:
    for value in axis.ticks:
        y = axis.y(value)
        yield _tag("line", x1=_LEFT, y1=y, x2=_WIDTH - _RIGHT, y2=y, stroke="currentColor", opacity=".18")
        yield _tag("text", _short(value), x=_LEFT - 6, y=y + 4, text_anchor="end")


def _short(value: float) -> str:
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:.3g}"


def _labels(labels: Sequence[str]) -> Iterator[str]:
    """Draw at most a dozen labels, slanted so that they do not overlap."""
    y = _TOP + _PLOT + 16
    for place in range(0, len(labels), max(1, math.ceil(len(labels) / 12))):
        x = _x(place, len(labels))
        turn = f"rotate(-{math.degrees(_SLANT):.0f} {x:.1f} {y})"
        yield _tag("text", escape(_cut(labels[place])), x=x, y=y, text_anchor="end", transform=turn)


def _cut(label: str) -> str:
    return label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}…"


def _bars(chart: Chart, axis: Axis) -> Iterator[str]:
    count = len(chart.labels)
    width = (_WIDTH - _LEFT - _RIGHT) / count * 0.8 / len(chart.series)
    for number, (name, values) in enumerate(chart.series.items()):
        for place, value in enumerate(values):
            if value is not None:
                x = _x(place, count) + (number - len(chart.series) / 2) * width
                y = axis.y(value)
                hint = _hint(chart, name, place, value)
                yield _tag("rect", hint, x=x, y=y, width=width, height=_TOP + _PLOT - y, fill=_color(number))


def _lines(chart: Chart, axis: Axis) -> Iterator[str]:
    for number, (name, values) in enumerate(chart.series.items()):
        known = [(place, value) for place, value in enumerate(values) if value is not None]
        at = {place: (_x(place, len(chart.labels)), axis.y(value)) for place, value in known}
        for _, run in groupby(enumerate(at), lambda one: one[1] - one[0]):  # a gap breaks the line
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at[place] for _, place in run))
            yield _tag("polyline", points=points, fill="none", stroke=_color(number), stroke_width=2)
        for place, value in known:
            x, y = at[place]
            yield _tag("circle", _hint(chart, name, place, value), cx=x, cy=y, r="2.5", fill=_color(number))


def _hint(chart: Chart, name: str, place: int, value: float) -> str:
    return _tag("title", escape(f"{name}, {chart.labels[place]}: {shown(value)}"))
