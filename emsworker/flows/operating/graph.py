"""The steps of a flow as a graph: who waited for whom, the critical path, and the places of a picture.

Nothing records which step waited for which. One that began after another one had ended may have waited for it, so an
edge leads to a step from those that ended before it began and after which nothing else fits in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from emsworker.flows.operating.admin import StepEntry

WIDTH, HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 210, 52, 24, 26, 8
_MOST = 60
_TITLE = 24


@dataclass(frozen=True)
class DrawnStep:
    """A step in the picture.

    Attributes:
        title: its name, cut.
        is_critical: it is on the critical path.
    """

    step: StepEntry
    title: str
    x: int
    y: int
    is_critical: bool


@dataclass(frozen=True)
class Edge:
    """A line between two steps."""

    path: str
    is_critical: bool


@dataclass(frozen=True)
class Graph:
    """The picture.

    Attributes:
        left_out: steps before the first one that is drawn.
        critical: the steps of the critical path, in their order.
    """

    nodes: Sequence[DrawnStep]
    edges: Sequence[Edge]
    width: int
    height: int
    left_out: int
    critical: Sequence[StepEntry]


def draw(steps: Sequence[StepEntry], now: datetime) -> Graph | None:
    """Return the picture of the last steps; ``None`` if there is none.

    Args:
        steps: in the order of their numbers.
        now: the end, so far, of those that wait.
    """
    if not steps:
        return None
    drawn = steps[-_MOST:]
    before = [_before(drawn, place) for place in range(len(drawn))]
    path = _critical(drawn, before, now)
    layers = _layers(before)
    rows: dict[int, int] = {}
    nodes: list[DrawnStep] = []
    for place, step in enumerate(drawn):
        row = rows[layers[place]] = rows.get(layers[place], -1) + 1
        x, y = _MARGIN + row * (WIDTH + _GAP_X), _MARGIN + layers[place] * (HEIGHT + _GAP_Y)
        nodes.append(DrawnStep(step, _cut(step.name), x, y, place in path))
    edges = [
        Edge(_line(nodes[one], nodes[place]), place in path and one in path)
        for place, ones in enumerate(before)
        for one in ones
    ]
    return Graph(
        nodes,
        edges,
        max(node.x for node in nodes) + WIDTH + _MARGIN,
        max(node.y for node in nodes) + HEIGHT + _MARGIN,
        len(steps) - len(drawn),
        [drawn[place] for place in path],
    )


def _before(steps: Sequence[StepEntry], place: int) -> list[int]:
    """Return the places of the steps after which a step began, without those that others of them waited for."""
    step = steps[place]
    ended = [one for one in range(place) if _ends_before(steps[one], step)]
    return [one for one in ended if not any(_ends_before(steps[one], steps[other]) for other in ended if other > one)]


def _ends_before(one: StepEntry, other: StepEntry) -> bool:
    return one.ended_at is not None and one.ended_at <= other.began_at


def _layers(before: Sequence[Sequence[int]]) -> list[int]:
    layers: list[int] = []
    for ones in before:
        layers.append(max((layers[one] + 1 for one in ones), default=0))
    return layers


def _critical(steps: Sequence[StepEntry], before: Sequence[Sequence[int]], now: datetime) -> list[int]:
    """Return the places of the steps that made the flow last as long as it did: from the last end back."""
    place: int | None = max(range(len(steps)), key=lambda one: (steps[one].ended_at or now, one))
    path: list[int] = []
    while place is not None:
        path.append(place)
        place = max(before[place], key=lambda one: (steps[one].ended_at or now, one), default=None)
    return path[::-1]


def seconds_of(step: StepEntry, now: datetime) -> float:
    """Return how long a step took, or has taken so far."""
    return max(0.0, ((step.ended_at or now) - step.began_at).total_seconds())


def _cut(name: str) -> str:
    return name if len(name) <= _TITLE else f"…{name[1 - _TITLE :]}"


def _line(one: DrawnStep, other: DrawnStep) -> str:
    x, y, to_x, to_y = one.x + WIDTH // 2, one.y + HEIGHT, other.x + WIDTH // 2, other.y
    half = (y + to_y) // 2
    return f"M{x} {y} C{x} {half} {to_x} {half} {to_x} {to_y}"
