"""The page from which an extension is written has all of acme, as the other tests run it."""

from pathlib import Path

import emsworker.extending
from tests.docs.snippets import ROOT, blocks

PAGE = ROOT / "docs" / "how-to" / "extensions.md"
ACME = Path(__file__).parent / "acme"


def test_its_blocks_are_the_files_of_acme() -> None:
    shown = {block.title: block.text for block in blocks(PAGE) if block.title.startswith("acme/")}
    files = (path for path in ACME.rglob("*") if path.suffix in {".py", ".sql", ".html"})
    assert shown == {f"acme/{path.relative_to(ACME)}": path.read_text() for path in files}


def test_it_names_each_module_to_build_on() -> None:
    modules = {path.stem for path in Path(emsworker.extending.__file__).parent.glob("[a-z]*.py")}
    table = PAGE.read_text().partition("| module of `emsworker.extending`")[2]
    assert {line.split("`")[1] for line in table.splitlines() if line.startswith("| `")} == modules
