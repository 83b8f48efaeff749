"""What a study is given, and what it finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.stage import Servers, Size


@dataclass(frozen=True)
class StudySize:
    """How much is studied.

    Args:
        repeats: how often the cases of a study take turns.
        backlogs: messages that wait.
        history: done claims, and as many dead letters.
        drained: messages that are drained.
        watched: messages during which the memory of a worker is watched.
        idle_s: how long an idle worker is watched.
        snapshot_s: how long a snapshot has been open when the drain beside it is measured.
    """

    repeats: int
    backlogs: tuple[int, ...]
    history: int
    drained: int
    watched: int
    idle_s: float
    snapshot_s: float


QUICK = StudySize(1, (10_000, 100_000), 20_000, 10_000, 50_000, 3, 0)
DEFAULT = StudySize(3, (10_000, 100_000, 1_000_000), 1_000_000, 40_000, 1_000_000, 10, 10)
FULL = StudySize(5, (10_000, 100_000, 1_000_000, 10_000_000), 1_000_000, 200_000, 5_000_000, 60, 600)


@dataclass
class Finding:
    """One case of a study, with every repeat of its figures, by name and unit."""

    line: str
    case: str
    figures: dict[str, list[float]] = field(default_factory=dict)

    def add(self, **figures: float) -> None:
        """One more repeat; ``_`` stands for a blank, ``per_s`` for ``/s``, ``us`` for ``µs``, ``percent`` for ``%``."""
        for name, value in figures.items():
            shown = name.replace("_per_s", "/s").replace("_percent", "_%").replace("_us", "_µs").replace("_", " ")
            self.figures.setdefault(shown, []).append(value)

    def median(self, name: str) -> float | None:
        """Of a figure that this case has."""
        values = self.figures.get(name)
        return median(values) if values else None


@dataclass(frozen=True)
class Lab:
    """Where a study runs.

    Args:
        servers: the private servers of the run.
        folder: for what else it needs.
        size: how much is studied.
        stage_size: what a stage wants to know.
        tell: called with what people may want to see at once.
    """

    servers: Servers
    folder: Path
    size: StudySize
    stage_size: Size
    tell: Callable[[str], None]


@dataclass(frozen=True)
class Study:
    """A line of the benchmarks.

    Args:
        name: on the command line.
        what: for people.
        run: finds.
    """

    name: str
    what: str
    run: Callable[[Lab], list[Finding]]
