"""Line charts as SVG, drawn on the server: no script, and colours by the style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from emsworker.web.texts import compact, duration

WIDTH, HEIGHT = 440, 164
# The left margin holds the widest label there is ("1h 30m") in the widest of the fonts.
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 8, 10, 24
_STEPS_S = (10, 30, 60, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400)
_TIME_STEPS_S = (5, 10, 30, 60, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400)


@dataclass(frozen=True)
class Line:
    """Values over time; ``None`` is a gap.

    Args:
        name: shown in the legend.
        css: the class of its colour.
    """

    name: str
    css: str
    values: Sequence[float | None]


@dataclass(frozen=True)
class Tick:
    """Mark on an axis."""

    at: float
    text: str


@dataclass(frozen=True)
class Drawn:
    """Line as an SVG path.

    Attributes:
        area: the path of the area below it; empty if it has gaps only.
        latest: its last value as text.
    """

    name: str
    css: str
    path: str
    area: str
    latest: str


@dataclass(frozen=True)
class LineChart:
    """Chart for the template.

    Attributes:
        lines: with their paths.
        x_ticks, y_ticks: the marks on the axes.
        summary: the chart in a sentence, for those who do not see it.
    """

    title: str
    lines: tuple[Drawn, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    summary: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    bottom: int = field(default=HEIGHT - _BOTTOM)


def draw(title: str, times: Sequence[datetime], lines: Sequence[Line], *, seconds: bool = False) -> LineChart | None:
    """Return a chart of lines over the same times, or ``None`` if there are fewer than two points.

    Args:
        seconds: the values are durations.
    """
    known = [value for line in lines for value in line.values if value is not None]
    if len(times) < 2 or not known or times[0] == times[-1]:
        return None
    show = duration if seconds else compact
    step = _step(max(known), seconds)
    top = step * max(1, math.ceil(max(known) / step - 1e-9))
    begin, span_s = times[0], (times[-1] - times[0]).total_seconds()

    def x(at: datetime) -> float:
        return _LEFT + (at - begin).total_seconds() / span_s * (WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return HEIGHT - _BOTTOM - value / top * (HEIGHT - _TOP - _BOTTOM)

    places = [round(x(at), 1) for at in times]
    drawn = []
    for line in lines:
        runs = _runs(
            [
                None if value is None else (place, round(y(value), 1))
                for place, value in zip(places, line.values, strict=True)
            ]
        )
        last = next((value for value in reversed(line.values) if value is not None), None)
        drawn.append(Drawn(line.name, line.css, _path(runs), _area(runs), "-" if last is None else show(last)))
    levels = [index * step for index in range(round(top / step) + 1)]
    y_ticks = tuple(Tick(round(y(level), 1), "0" if level == 0 else show(level)) for level in levels)
    words = [
        f"{line.name} is {line.latest} now, at most {show(_highest(given))}"
        for line, given in zip(drawn, lines, strict=True)
    ]
    return LineChart(title, tuple(drawn), _time_ticks(times[0], times[-1], x), y_ticks, f"{title}: {'; '.join(words)}.")


def _highest(line: Line) -> float:
    return max((value for value in line.values if value is not None), default=0.0)


def _step(highest: float, seconds: bool) -> float:
    """Return a round distance of marks that gives at most four of them."""
    rough = max(highest, 1e-9) / 3
    if seconds and rough > 5:
        return float(next((step for step in _STEPS_S if step >= rough), math.ceil(rough / 86400) * 86400))
    power = 10.0 ** math.floor(math.log10(rough))
    return float(next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9)))


def _time_ticks(first: datetime, last: datetime, x: object) -> tuple[Tick, ...]:
    span_s = (last - first).total_seconds()
    step_s = next((step for step in _TIME_STEPS_S if span_s / step <= 6), 86400)
    form = "%H:%M:%S" if step_s < 60 else "%H:%M" if step_s < 86400 else "%d %b"
    midnight = first.replace(hour=0, minute=0, second=0, microsecond=0)
    number = math.ceil((first - midnight).total_seconds() / step_s)
    ticks = []
    while (at := midnight + timedelta(seconds=number * step_s)) <= last:
        place = x(at)  # type: ignore[operator]
        if place < WIDTH - 24:
            ticks.append(
                Tick(round(place, 1), at.strftime("%d %b" if at.hour == at.minute == at.second == 0 else form))
            )
        number += 1
    return tuple(ticks)


def _runs(points: Sequence[tuple[float, float] | None]) -> list[list[tuple[float, float]]]:
    runs: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if point is None:
            runs.append([])
        else:
            runs[-1].append(point)
    return [run for run in runs if run]


def _path(runs: Sequence[Sequence[tuple[float, float]]]) -> str:
    return " ".join("M" + " L".join(f"{x:g} {y:g}" for x, y in run) for run in runs)


def _area(runs: Sequence[Sequence[tuple[float, float]]]) -> str:
    bottom = HEIGHT - _BOTTOM
    return " ".join(
        f"M{run[0][0]:g} {bottom} L" + " L".join(f"{x:g} {y:g}" for x, y in run) + f" L{run[-1][0]:g} {bottom} Z"
        for run in runs
        if len(run) > 1
    )
