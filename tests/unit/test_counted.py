"""Counts and spans as people read them."""

import ast
import re
from pathlib import Path

from emsworker.console.cells import cell_of
from emsworker.core.counted import counted, plural, seconds_text
from emsworker.core.ladder import Dead, Ladder
from emsworker.spark.jobs.report import shown

ROOT = Path(__file__).resolve().parents[2]
NOUNS = (
    "attempts bodies claims clients errors faults files findings groups letters messages offsets others partitions "
    "pieces problems processes results retries rows segments slots tasks threads times topics warnings"
)
# A limit that is never 1.
LIMITS = re.compile(r"\{(_[A-Z_]+|MAX_\w+|most|limit|max_bytes|self\._max\w*|needed|MAX_\w+)\}")


def test_one_is_told_as_one() -> None:
    assert [counted(n, "message") for n in (0, 1, 2)] == ["0 messages", "1 message", "2 messages"]
    assert [counted(n, "body") for n in (1, 2)] == ["1 body", "2 bodies"]
    assert [plural(n, "was") for n in (0, 1)] == ["were", "was"]
    assert Ladder((1.0,), 1).next(1, ValueError()) == Dead("used up its 1 attempt")


def test_nothing_has_no_sign() -> None:
    assert [seconds_text(s) for s in (-0.0001, 0.0, 0.0004, 0.25, -1.5)] == ["0.000 s"] * 3 + ["+0.250 s", "-1.500 s"]
    assert [cell_of("oldest_s", s) for s in (-0.0001, -2.0, 0.25)] == ["0ms", "0ms", "250ms"]
    assert [shown(-0.0001), shown(0.5)] == ["0", "0.5"]


def test_no_text_counts_by_itself() -> None:
    """What is counted goes through :func:`counted`: a number beside a plural noun is "1 errors" some day."""
    noun = "|".join(NOUNS.split())
    pattern = re.compile(rf"(?:\{{[^{{}}]+\}}|%d) (?:dead )?(?:{noun})\b")
    found = []
    for path in sorted([*ROOT.glob("cli/*.py"), *ROOT.glob("emsworker/**/*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            text = (
                ast.unparse(node)
                if isinstance(node, ast.JoinedStr)
                else node.value
                if isinstance(node, ast.Constant)
                else ""
            )
            if isinstance(text, str) and isinstance(node, ast.JoinedStr) | ("%d" in text):
                found += [
                    f"{path.relative_to(ROOT)}: {hit[0]}" for hit in pattern.finditer(text) if not LIMITS.search(hit[0])
                ]
    assert not found, "\n".join(found)
