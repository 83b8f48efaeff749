"""``python -m bench.publish_docs RESULT.json``: put a result's table into the README and the documentation."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from bench import report

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "docs" / "benchmarks.json"
PAGES = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md")
MARKED = re.compile(r"(?<=<!-- benchmarks -->\n).*?(?=<!-- /benchmarks -->)", re.DOTALL)


def main(result: Path) -> None:
    """Copy the result and write its table between the marks of each page."""
    shutil.copyfile(result, SOURCE)
    text = f"\n{report.table(report.load(SOURCE))}\n\n"
    for page in PAGES:
        page.write_text(MARKED.sub(lambda _: text, page.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
