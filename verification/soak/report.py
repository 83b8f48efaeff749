"""The report of a soak: one HTML page with plots, a table in Markdown, and everything as JSON."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median
from typing import Any

from emsworker.spark.jobs.page import page
from emsworker.spark.jobs.report import Chart, JobReport, Table
from verification.soak.running import Soaked
from verification.soak.series import Series

_POINTS, _LINES = 150, 8
_COLUMNS = ("series", "unit", "from", "to", "per hour", "tolerated", "verdict")


def lines(done: Soaked) -> list[str]:
    """One for each series that is not flat."""
    return [
        f"NOT FLAT  {name} {trend.verdict}: from {_n(trend.first)} to {_n(trend.last)} {done.series[name].unit}, "
        f"{_n(trend.per_hour)} per hour (tolerated over the whole time: {_n(trend.tolerated)})"
        for name, trend in done.rising.items()
    ]


def summary(done: Soaked) -> dict[str, Any]:
    """The figures that are no series."""
    return {
        "server": done.server,
        "offsets from": done.allocator,
        "verdict": "flat, and nothing wrong" if done.good else f"{len(done.rising)} not flat, {len(done.wrong)} wrong",
        "seconds": round(done.took_s),
        "capacity, messages/s": round(done.capacity, 1),
        "load, messages/s": round(done.rate, 1),
        "confirmed": done.confirmed,
        "runs": done.runs,
        "run again with good reason": done.repeated,
        "faults": sum(done.faults.values()),
        "processes of the worker that is never hit": len(set(done.series["rss worker"].who)),
        "samples missed while the server was away": done.missed,
    }


def write(done: Soaked, folder: Path) -> list[Path]:
    """Write the three files."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"soak-{done.server}"
    faults = Table("faults", "Faults", ("fault", "times"), sorted(done.faults.items()))
    wrong = Table("wrong", "What the checker found", ("finding",), [(one,) for one in done.wrong])
    trends = Table("trends", "Trends after the warm-up", _COLUMNS, _rows(done))
    report = JobReport(f"Soak on {done.server}", [trends, faults, wrong], _charts(done))
    texts = {
        "html": page(report, summary(done)),
        "md": _markdown(done),
        "json": json.dumps(_as_json(done), indent=1),
    }
    paths = [folder / f"{stem}.{ending}" for ending in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text + "\n", encoding="utf-8")
    return paths


def _rows(done: Soaked) -> list[tuple[Any, ...]]:
    return [
        (name, done.series[name].unit, *map(_n, (t.first, t.last, t.per_hour, t.tolerated)), t.verdict)
        for name, t in done.trends.items()
    ]


def _n(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _markdown(done: Soaked) -> str:
    facts = "\n".join(f"- {name}: {value}" for name, value in summary(done).items())
    head = f"| {' | '.join(_COLUMNS)} |\n| {' | '.join('---' for _ in _COLUMNS)} |"
    body = "\n".join(f"| {' | '.join(map(str, row))} |" for row in _rows(done))
    return f"{facts}\n\n{head}\n{body}"


def _as_json(done: Soaked) -> dict[str, Any]:
    def shown(value: float) -> float | None:
        return None if math.isnan(value) else round(value, 3)

    return {
        "summary": summary(done),
        "good": done.good,
        "wrong": done.wrong,
        "faults": done.faults,
        "warm_s": done.warm_s,
        "trends": {
            name: {key: shown(value) if isinstance(value, float) else value for key, value in asdict(trend).items()}
            for name, trend in done.trends.items()
        },
        "series": {
            name: {
                "unit": one.unit,
                "judged": one.judged,
                "at_s": [round(at - done.began, 1) for at in one.times],
                "values": [round(value, 3) for value in one.values],
            }
            for name, one in done.series.items()
        },
    }


# -- plots -------------------------------------------------------------------------------------------------------------


def _charts(done: Soaked) -> list[Chart]:
    """One for each kind of series, and more where there are too many lines for one."""
    end = max((one.times[-1] for one in done.series.values() if one.times), default=done.began)
    edges = [done.began + (end - done.began) * n / _POINTS for n in range(_POINTS + 1)]
    labels = [_clock((left + right) / 2 - done.began) for left, right in pairwise(edges)]
    charts = []
    for kind, group in groupby(sorted(done.series.values(), key=lambda one: one.name), lambda one: one.name.split()[0]):
        shown = [one for one in group if any(one.values)]
        for first in range(0, len(shown), _LINES):
            some = shown[first : first + _LINES]
            title = f"{kind} ({some[0].unit})"
            charts.append(Chart(title, "line", labels, {one.name: _points(one, edges) for one in some}))
    return charts


def _points(series: Series, edges: Sequence[float]) -> list[float | None]:
    """The median of each span, or a gap."""
    found: list[list[float]] = [[] for _ in edges[1:]]
    width = max(edges[1] - edges[0], 1e-9)
    for at, value in zip(series.times, series.values, strict=True):
        place = int((at - edges[0]) / width)
        found[max(0, min(len(found) - 1, place))].append(value)
    return [median(values) if values else None for values in found]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
