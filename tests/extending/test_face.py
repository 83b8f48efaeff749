"""The face that extensions are built on: what its modules name is there, and is what the type checker sees."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import emsworker.extending

FACE = sorted(Path(emsworker.extending.__file__).parent.glob("[a-z]*.py"))


def test_it_is_twelve_modules() -> None:
    assert len(FACE) == 12


@pytest.mark.parametrize("path", FACE, ids=lambda path: path.stem)
def test_every_name_is_that_of_its_home(path: Path) -> None:
    module = importlib.import_module(f"emsworker.extending.{path.stem}")
    (checked,) = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.If)]
    named = {
        alias.name: node.module for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert named
    for name, home in named.items():
        there = importlib.import_module(home)
        expected = getattr(there, name) if hasattr(there, name) else importlib.import_module(f"{home}.{name}")
        assert getattr(module, name) is expected, name
    with pytest.raises(AttributeError, match="nothing_like_this"):
        module.nothing_like_this  # noqa: B018
