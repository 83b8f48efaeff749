"""The store's named statements, found by the name of their file."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import emsworker
from emsworker.store.engine.sql import Statements

LIBRARY = Path(emsworker.__file__).parent


def sql_files() -> Iterator[Path]:
    """The store's files of statements, without its migrations."""
    return (path for path in sorted((LIBRARY / "store").rglob("*.sql")) if path.parent.name != "migrations")


def module_of(path: Path) -> str:
    """The name of the module beside a file."""
    return ".".join(("emsworker", *path.relative_to(LIBRARY).with_suffix("").parts))


def statements_of(subject: str) -> Statements:
    """The statements of ``<subject>.sql``, wherever it is."""
    (path,) = [path for path in sql_files() if path.stem == subject]
    return statements_beside(path)


def statements_beside(path: Path) -> Statements:
    """The statements of a file as its module has them, with their lists of columns."""
    held = vars(import_module(module_of(path))).values()
    return next(one for one in held if isinstance(one, Statements))
