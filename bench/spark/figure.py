"""One figure of a run, what it is asked to be, and whether it is; as a table and as JSON. Nothing here needs Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One row of the table: every round of it.

    Args:
        line: which of the lines of ``python -m bench.spark`` it belongs to.
        what: for people.
        unit: of the values.
        values: one for each round.
        against: what it is compared with, for people.
        others: the values of that, measured in turns with ``values``.
        least, most: what the ratio is asked to be or, if there are no ``others``, the value.
        note: what else was seen.
    """

    line: str
    what: str
    unit: str
    values: list[float]
    against: str = ""
    others: list[float] = field(default_factory=list)
    least: float | None = None
    most: float | None = None
    note: str = ""

    @property
    def value(self) -> float:
        """The median of its rounds."""
        return median(self.values)

    @property
    def ratio(self) -> float | None:
        """The median of the ratios of the rounds: both of a round have met the same weather."""
        if not self.others:
            return None
        return median(one / other for one, other in zip(self.values, self.others, strict=True))

    @property
    def met(self) -> bool | None:
        """Whether it is what it is asked to be; ``None`` if nothing is asked."""
        if self.least is None and self.most is None:
            return None
        found = self.value if self.ratio is None else self.ratio
        return (self.least is None or found >= self.least) and (self.most is None or found <= self.most)

    @property
    def asked(self) -> str:
        """What is asked, for people."""
        bounds = {"at least": self.least, "at most": self.most}
        return " and ".join(f"{word} {self._shown(value)}" for word, value in bounds.items() if value is not None)

    def _shown(self, bound: float) -> str:
        return f"{bound:.0%}" if self.others else _amount(bound, self.unit)


def _amount(value: float, unit: str) -> str:
    return f"{value:,.0f}{unit[unit.index('/') :]}" if "/" in unit else f"{value:,.1f} {unit}"


def table(figures: Iterable[Figure]) -> str:
    """A Markdown table of medians."""
    head = ["| what | measured | beside | ratio | asked | met |", "| --- | ---: | --- | ---: | --- | --- |"]
    return "\n".join([*head, *map(_row, figures)])


def _row(one: Figure) -> str:
    beside = f"{_amount(median(one.others), one.unit)}, {one.against}" if one.others else one.against
    ratio = "" if one.ratio is None else f"{one.ratio:.0%}"
    met = {None: "", True: "yes", False: "**no**"}[one.met]
    what = f"{one.what} ({one.note})" if one.note else one.what
    return f"| {what} | {_amount(one.value, one.unit)} | {beside} | {ratio} | {one.asked} | {met} |"


def as_json(figures: Iterable[Figure]) -> list[dict[str, Any]]:
    """Every round, and what came of it."""
    return [
        asdict(one) | {"ratio": None if one.ratio is None else round(one.ratio, 3), "met": one.met} for one in figures
    ]


def load(file: Path) -> list[Figure]:
    """The figures of a JSON file."""
    names = [one.name for one in fields(Figure)]
    return [Figure(**{name: row[name] for name in names}) for row in json.loads(file.read_text())["spark"]]
