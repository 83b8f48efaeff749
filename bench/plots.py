"""Comparisons with peers as plots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.peers.compare import Comparison
from bench.peers_report import CONSUME, ONE, P99, joined

_OURS, _THEIRS = "#1f6feb", "#8b949e"
_PLOTS = {
    "consume": ("Messages consumed per second, 2 processes (logarithmic)", CONSUME, "ems"),
    "enqueue": ("Messages sent per second, one caller (logarithmic)", ONE, "ems"),
    "latency": ("99th percentile from send to handler, in ms (logarithmic)", P99, "ems-redis"),
}


def draw(rows: Sequence[Comparison], folder: Path, stem: str) -> list[Path]:
    """Write one SVG for each kind of figure, with the systems from best to worst.

    Args:
        rows: of one result.
        folder: where they go.
        stem: what their names begin with.
    """
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = stem  # the same figures make the same file
    from matplotlib import pyplot

    files = []
    for name, (title, figure, side) in _PLOTS.items():
        bars = _bars(rows, figure, side)
        if not bars:
            continue
        canvas, axes = pyplot.subplots(figsize=(8, 0.4 * len(bars) + 1.2), layout="constrained")
        _fill(axes, title, bars)
        files.append(folder / f"{stem}-{name}.svg")
        canvas.savefig(files[-1], metadata={"Date": None})
        pyplot.close(canvas)
    return files


def _bars(rows: Sequence[Comparison], figure: str, side: str) -> list[tuple[str, float]]:
    bars = [(row.title, value) for row in rows if (value := row.median("peer", figure)) is not None]
    ours = joined(row.sides[side] for row in rows).get(figure)
    if ours:
        bars.append(("EMS" if side == "ems" else "EMS, woken by Redis", median(ours)))
    return sorted(bars, key=lambda bar: bar[1], reverse=figure == P99)


def _fill(axes: Any, title: str, bars: list[tuple[str, float]]) -> None:
    names, values = [name for name, _ in bars], [value for _, value in bars]
    drawn = axes.barh(names, values, color=[_OURS if name.startswith("EMS") else _THEIRS for name in names])
    axes.bar_label(drawn, [f"{value:,.0f}" if value >= 10 else f"{value:.1f}" for value in values], padding=3)
    axes.set_xscale("log")
    axes.set_xlim(right=max(values) * 3)
    axes.set_title(title, fontsize="medium", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
