"""``./dev bench-publish RESULT.json``: put a result's tables and plots into the README and the documentation.

A result may hold lines, comparisons with peers and studies, or some of them; what it does not hold stays as it was, and
so does each study that it does not hold.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import capacity, peers_report, plots, report
from bench.spark import figure
from bench.studies import report as studies_report
from bench.suite import STUDIES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
_COMMON = ("at", "machine", "database", "redis", "durability")
_PLOTS = "benchmarks-peers"


@dataclass(frozen=True)
class Part:
    """A part of the pages.

    Args:
        name: of its marks, ``<!-- name -->``.
        keys: what it takes from a result; without the first, the result does not have it.
        file: where the result is kept.
        pages: that have the marks.
        table: of what the file holds.
    """

    name: str
    keys: tuple[str, ...]
    file: Path
    pages: tuple[Path, ...]
    table: Callable[[Path], str]

    @property
    def marked(self) -> re.Pattern[str]:
        """What lies between its marks."""
        return re.compile(rf"(?<=<!-- {self.name} -->\n).*?(?=<!-- /{self.name} -->)", re.DOTALL)

    @property
    def command(self) -> str:
        """What measures it."""
        return "./dev bench-spark" if self.name == "spark" else f"./dev bench {self.name}"

    def put_into(self, page: Path) -> None:
        """Write it between its marks."""
        text = self.text()
        page.write_text(self.marked.sub(lambda _: text, page.read_text()))

    def text(self) -> str:
        """What belongs between its marks."""
        if not self.file.exists():
            return f"\nNot published yet: `{self.command}` prints it.\n\n"
        return f"\n{self.table(self.file)}\n\n"


def _peers(file: Path) -> str:
    shown = "\n".join(f"![]({path.name})" for path in sorted(DOCS.glob(f"{_PLOTS}-*.svg")))
    parts = [report.about(json.loads(file.read_text())), shown, peers_report.table(peers_report.load(file))]
    return "\n\n".join(part for part in parts if part)


def _studies(file: Path) -> str:
    found = json.loads(file.read_text())
    times = sorted(at[:16].replace("T", " ") for at in found["measured"].values())
    more = f" Studies were measured by themselves, from {times[0]} to {times[-1]}." if times[0] != times[-1] else ""
    return f"{report.about(found)}{more}\n\n{studies_report.table(studies_report.load(file))}"


def _with_older_studies(found: dict[str, Any], file: Path) -> dict[str, Any]:
    """A result, and of the one that is kept what it does not hold."""
    old = json.loads(file.read_text()) if file.exists() else {"findings": [], "measured": {}}
    names = {row["line"] for row in found["findings"]}
    rows = [row for row in old["findings"] if row["line"] not in names] + found["findings"]
    order = {study.name: number for number, study in enumerate(STUDIES)}
    measured = {name: at for name, at in old["measured"].items() if name not in names} | dict.fromkeys(
        names, found["at"]
    )
    return found | {"findings": sorted(rows, key=lambda row: order[row["line"]]), "measured": measured}


def _spark(file: Path) -> str:
    found = json.loads(file.read_text())
    about = report.about(found).replace("; load average", f", PySpark {found['pyspark']}; load average")
    return f"{about}\n\n{figure.table(figure.load(file))}"


PAGE = DOCS / "benchmarks.md"
SPARK_PAGE = DOCS / "pipeline/benchmarks.md"
PARTS = (
    Part(
        "benchmarks",
        ("figures", "size"),
        DOCS / "benchmarks.json",
        (ROOT / "README.md", PAGE),
        lambda file: report.table(report.load(file)),
    ),
    Part(
        "capacity",
        ("figures", "size"),
        DOCS / "benchmarks.json",
        (DOCS / "discussions" / "capacity.md",),
        lambda file: f"{report.about(json.loads(file.read_text()))}\n\n{capacity.table(file)}",
    ),
    Part("peers", ("comparisons", "peers_size"), DOCS / "benchmarks-peers.json", (PAGE,), _peers),
    Part("spark", ("spark", "spark_size", "pyspark"), DOCS / "pipeline/benchmarks.json", (SPARK_PAGE,), _spark),
    Part("flat cheap scale loaded", ("findings", "measured"), DOCS / "benchmarks-studies.json", (PAGE,), _studies),
)


def main(result: Path) -> None:
    """Keep the parts of a result, and write their tables between the marks of each page."""
    found = json.loads(result.read_text())
    for part in PARTS:
        if part.keys[0] not in found:
            continue
        if part.table is _studies:
            found = _with_older_studies(found, part.file)
        kept = {key: found[key] for key in (*_COMMON, *part.keys)}
        part.file.write_text(json.dumps(kept, indent=2) + "\n")
        if part.name == "peers":
            plots.draw(peers_report.load(part.file), DOCS, _PLOTS)
        for page in part.pages:
            part.put_into(page)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
