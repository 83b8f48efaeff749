"""The code of a version 1.1: this one with the migration of ``next``, in a folder from which programs are run."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.worker import LIBRARY, ROOT

NEXT = Path(__file__).parent / "next"


def copy_newer(folder: Path) -> Path:
    """Return a new folder with that code."""
    folder.mkdir()
    left_out = shutil.ignore_patterns("__pycache__", "results", "recorded")
    for part in (LIBRARY, ROOT / "tests", ROOT / "verification"):
        shutil.copytree(part, folder / part.name, ignore=left_out)
    if not (folder / "emsworker" / "cli").exists():  # an editable installation has it beside
        shutil.copytree(ROOT / "cli", folder / "emsworker" / "cli", ignore=left_out)
    for migration in NEXT.glob("*.sql"):
        shutil.copy(migration, folder / "emsworker" / "store" / "engine" / "migrations")
    return folder
