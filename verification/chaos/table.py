"""The table of results, for people and for the documentation."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.worker import ROOT
from verification.chaos import mutants
from verification.chaos.mutants import Caught
from verification.chaos.running import Row
from verification.chaos.scenarios import CLUSTERS

PAGE = ROOT / "docs" / "discussions" / "reliability.md"
SOURCE = ROOT / "docs" / "discussions" / "reliability.json"
CLUSTERS_SOURCE = SOURCE.with_name("reliability-clusters.json")
MARKED = re.compile(r"(?<=<!-- chaos -->\n).*?(?=<!-- /chaos -->)", re.DOTALL)
MUTANTS_MARKED = re.compile(r"(?<=<!-- mutants -->\n).*?(?=<!-- /mutants -->)", re.DOTALL)
CLUSTERS_MARKED = re.compile(r"(?<=<!-- clusters -->\n).*?(?=<!-- /clusters -->)", re.DOTALL)
_TITLES = (
    "scenario",
    "server",
    "offsets",
    "sent",
    "run",
    "lost",
    "phantom",
    "duplicated",
    "order",
    "other",
    "recovery",
)
_SUMMED = ("sent", "run", "lost", "phantom", "duplicated", "order", "other")
_CLUSTER_TITLES = ("scenario", "times", *_SUMMED, "the cluster's time + stall after it")
_SERVER_WIDTH = 2 + max(map(len, ("mariadb", "mysql", *CLUSTERS)))


def cells(row: Row) -> tuple[str, ...]:
    """A row as text."""
    recovery = "-" if row.recovery_s is None else f"{row.recovery_s:.1f} s"
    if row.heals_within_s is not None:
        recovery += f" (<= {row.heals_within_s:g} s)"
    recovery = row.note or recovery
    numbers = (row.sent, row.run, row.lost, row.phantom, row.duplicated, row.order, row.other)
    return (row.scenario, row.server, row.allocator, *map(str, numbers), recovery)


def line(row: Row) -> str:
    """A row on the terminal."""
    mark = "ok  " if row.good else "BAD "
    text = "  ".join(cell.rjust(width) for cell, width in zip(cells(row)[3:], (6, 6, 4, 4, 5, 4, 4, 16), strict=True))
    return f"{mark}{_named(row.scenario, row.server, row.allocator)}{text}  ({row.took_s:.0f} s)"


def _named(scenario: str, server: str, allocator: str) -> str:
    return f"{scenario.ljust(22)}{server.ljust(_SERVER_WIDTH)}{allocator.ljust(9)}"


def header() -> str:
    """The titles of the terminal's table."""
    titles = ("sent", "run", "lost", "phan", "dupl", "ordr", "othr", "recovery")
    text = "  ".join(title.rjust(width) for title, width in zip(titles, (6, 6, 4, 4, 5, 4, 4, 16), strict=True))
    return f"    {_named('scenario', 'server', 'offsets')}{text}"


def markdown(rows: Sequence[Row]) -> str:
    """The whole table."""
    lines = [f"| {' | '.join(_TITLES)} |", f"| {' | '.join('---' for _ in _TITLES)} |"]
    return "\n".join([*lines, *(f"| {' | '.join(cells(row))} |" for row in rows)])


def save(rows: Sequence[Row], folder: Path, about: dict[str, object]) -> None:
    """Write the results as JSON and as Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(about | {"rows": [row.to_json() for row in rows]}, indent=1)
    (folder / "chaos.json").write_text(text + "\n")
    (folder / "chaos.md").write_text(markdown(rows) + "\n")


def save_mutants(rows: Sequence[Caught], folder: Path, about: dict[str, object]) -> None:
    """Write what became of the mutants."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(about | {"rows": mutants.to_json(rows)}, indent=1)
    (folder / "mutants.json").write_text(text + "\n")


def publish_mutants(source: Path) -> None:
    """Write the table of mutants between the marks of the page."""
    told = json.loads(source.read_text())
    rows = [Caught(**{name: value for name, value in row.items() if name != "good"}) for row in told["rows"]]
    text = (
        f"\n{mutants.markdown(rows)}\n\nSeed {told['seed']}; a run that finds nothing goes on with the next seed.\n\n"
    )
    PAGE.write_text(MUTANTS_MARKED.sub(lambda _: text, PAGE.read_text()))


def load(path: Path) -> list[Row]:
    """Rows that were saved."""
    return _rows_of(json.loads(path.read_text()))


def _rows_of(told: dict[str, Any]) -> list[Row]:
    return [Row(**{name: value for name, value in row.items() if name != "good"}) for row in told["rows"]]


def publish(source: Path) -> None:
    """Copy a result into the documentation, and write its table between the marks of the page."""
    SOURCE.write_text(source.read_text())
    text = f"\n{markdown(load(SOURCE))}\n\n"
    PAGE.write_text(MARKED.sub(lambda _: text, PAGE.read_text()))


def publish_clusters(results: Path) -> None:
    """Copy the results of all engines into the documentation, and write their tables between the marks of the page."""
    runs = {path.parent.name: json.loads(path.read_text()) for path in sorted(results.glob("*/chaos.json"))}
    CLUSTERS_SOURCE.write_text(json.dumps(runs, indent=1) + "\n")
    tables = [cluster_markdown(engine, told) for engine, told in runs.items()]
    text = "\n" + "\n\n".join(tables) + "\n\n"
    PAGE.write_text(CLUSTERS_MARKED.sub(lambda _: text, PAGE.read_text()))


def cluster_markdown(engine: str, told: dict[str, Any]) -> str:
    """What a run on a cluster came to: one line for each scenario, however often it was brought about."""
    rows = _rows_of(told)
    lines = [f"| {' | '.join(_CLUSTER_TITLES)} |", f"| {' | '.join('---' for _ in _CLUSTER_TITLES)} |"]
    for scenario in dict.fromkeys(row.scenario for row in rows):
        those = [row for row in rows if row.scenario == scenario]
        sums = [sum(getattr(row, name) for row in those) for name in _SUMMED]
        notes = "; ".join(dict.fromkeys(row.note for row in those))
        lines.append(f"| {scenario} | {len(those)} | {' | '.join(map(str, sums))} | {notes} |")
    began = (
        f"`--engine {engine} --seed {told['seed']}`, {told['took_s'] / 60:.0f} minutes with the start of the cluster:"
    )
    return "\n".join([began, "", *lines])
