"""Every mutant of ``./dev chaos --mutants`` still finds the text that it spoils."""

from pathlib import Path

import pytest

from emsworker.chaos import Kind
from tests.support.worker import LIBRARY
from verification.chaos.mutants import MUTANTS, Mutant, spoil


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_mutant_differs_from_the_code_just_where_it_says(mutant: Mutant, tmp_path: Path) -> None:
    copy = spoil(mutant, tmp_path / "code")
    for name in {name for name, _, _ in mutant.edits}:
        assert (copy / "emsworker" / name).read_text() != (LIBRARY / name).read_text()


def test_the_mutants_cover_what_is_worst() -> None:
    assert {Kind.LOST, Kind.ORDER, Kind.EFFECT, Kind.CLAIMED_TWICE} <= {kind for one in MUTANTS for kind in one.wanted}
