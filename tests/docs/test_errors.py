"""Every error that the documentation or a docstring names can be imported from ``emsworker``."""

import ast
import builtins
import re
from pathlib import Path

import emsworker
import emsworker.arrow
import emsworker.flows
from emsworker.core import errors

ROOT = Path(__file__).resolve().parents[2]
# Of the parts of EMS that are imported under names of their own, where their pages say so.
PARTS = {"django", "integrations", "pipeline", "spark", "local", "chaos", "testing"}
# Errors of asyncio, Celery and Pydantic.
OTHERS = {"CancelledError", "ChordError", "TaskRevokedError", "ValidationError"}
SECTION = re.compile(r"Raises:\n((?:[ ]+.*\n|\n)*)")
NAMES = re.compile(r"^\s*((?:[A-Z]\w+(?:, )?)+):", re.MULTILINE)


def test_every_error_of_ems_can_be_imported_from_the_package() -> None:
    own = {name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, errors.EmsError)}
    assert own <= set(emsworker.__all__)
    assert all(getattr(emsworker, name) is getattr(errors, name) for name in own)


def test_what_the_pages_name_can_be_imported() -> None:
    known = {name for name in vars(errors) if name[0].isupper()}
    text = "\n".join(path.read_text() for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
    named = {
        name for name in re.findall(r"`([A-Z]\w+)`", text) if name in known or name.endswith(("Error", "Exceeded"))
    }
    named -= set(dir(builtins)) | OTHERS
    assert "PublishTimeout" in named
    assert sorted(named - set(emsworker.__all__)) == []
    imported = re.findall(r"from emsworker\.core\.errors import", text)
    assert not imported, "the pages import errors from emsworker itself"


def test_what_docstrings_raise_can_be_imported() -> None:
    missing = []
    for path in (ROOT / "emsworker").glob("**/*.py"):
        if path.relative_to(ROOT / "emsworker").parts[0] in PARTS | {
            "console",
            "store",
            "worker",
            "publish",
            "broker",
            "consume",
            "flows",
            "http",
        }:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
                continue
            for section in SECTION.findall((ast.get_docstring(node) or "") + "\n"):
                for names in NAMES.findall(section):
                    missing += [
                        f"{path.name}: {node.name} raises {name}"
                        for name in names.split(", ")
                        if name
                        and not hasattr(builtins, name)
                        and not hasattr(emsworker, name)
                        and not hasattr(emsworker.arrow, name)
                        and not hasattr(emsworker.flows, name)
                    ]
    assert sorted(missing) == []
