"""One word for each thing: what the glossary has replaced stays away from code, SQL, settings, commands and pages."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

import emsworker

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path(emsworker.__file__).parent  # the checkout's, or what the wheel has installed
FOLDERS = [LIBRARY, LIBRARY / "cli" if (LIBRARY / "cli").is_dir() else ROOT / "cli"]

REPLACED = {
    "done_to": "acked_to",
    "watermark": "acked offset, or high watermark",
    "frontier": "high watermark",
    "floor": "log start offset",
    "tenure": "fencing token",
    "scout": "poller",
    "lead": "hint",
    "leads": "hint",
    "bell": "notifier",
    "wire": "connection",
    "care": "isolation",
    "turns": "isolation",
    "parked": "blocked",
    "parking": "blocked",
    "aside": "detached",
    "mend": "fix",
    "telling": "progress",
    "keeper": "renewer, or writer",
    "taker": "claimant",
    "miss": "nothing claimed",
    "terms": "delivery options",
    "fate": "outcome",
    "fates": "outcomes",
    "bag": "options",
    "pace": "interval",
    "house": "maintenance",
    "piece": "range, slice or part",
    "pieces": "ranges, slices or parts",
    "looks": "samples",
    "opening": "preamble, or a broker's parts",
    "stand_in": "broker in memory",
    "standin": "broker in memory",
    "ring": "notify",
    "duty": "service",
    "duties": "services",
}
"""Former word -> today's, of names."""

IN_PROSE = {"frontier", "scout", "tenure", "parked", "taker", "mend", "done_to", "fates", "duties"}
"""Those that plain English has no other use for."""

ELSEWHERE = {"high_watermark", "high_watermarks", "withWatermark", "try_to_lead", "leads", "lead", "FLOOR"}
"""Today's word, Spark's, leadership of a beat or a producer, and SQL's function."""

_NAME = re.compile(r"[A-Za-z_]\w*")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def _words(name: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(name.replace("high_watermark", ""))} | {name.strip("_")}


def _wrong(name: str) -> set[str]:
    return set() if name.strip("_") in ELSEWHERE else _words(name) & set(REPLACED)


def _names_of(path: Path) -> set[str]:
    """Every name that a module defines, or that a statement uses."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".sql":
        return set(_NAME.findall(re.sub("--(?! name:).*", "", text)))
    names = {path.stem}
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
    return names


FILES = sorted(path for folder in FOLDERS for suffix in ("py", "sql") for path in folder.rglob(f"*.{suffix}"))
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])


def test_no_name_has_a_word_that_was_replaced() -> None:
    found = {
        f"{path.name}: {name}": [f"say {REPLACED[word]}" for word in sorted(wrong)]
        for path in FILES
        for name in _names_of(path)
        if (wrong := _wrong(name))
    }
    assert len(FILES) > 200
    assert found == {}


@pytest.mark.parametrize("path", [*FILES, *PAGES], ids=lambda path: path.name)
def test_no_text_has_a_word_that_was_replaced(path: Path) -> None:
    words = Counter(word.lower() for word in re.findall(r"[A-Za-z_]+", path.read_text(encoding="utf-8")))
    assert {word: f"say {REPLACED[word]}" for word in IN_PROSE if words[word]} == {}


def test_a_class_has_a_name_of_its_own() -> None:
    places: dict[str, list[str]] = {}
    for path in FILES:
        if path.suffix == ".py" and path.parts[-3:-1] != ("management", "commands"):  # Django wants one name in all
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(str(path))
    assert {name: where for name, where in places.items() if len(set(where)) > 1} == {}
