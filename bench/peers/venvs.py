"""A virtual environment for each system, made once and kept in the cache folder."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from emsworker.local import ServerFailed
from emsworker.local.files import exclusive

_INSTALL_S = 900.0
CACHE_VARIABLE = "EMS_CACHE_DIR"


def python_of(name: str, requirements: tuple[str, ...]) -> Path:
    """The interpreter that has these packages; ours, where there are none.

    Args:
        name: of the system, for the folder.
        requirements: as pip takes them, with their versions.

    Raises:
        ServerFailed: they cannot be installed.
    """
    if not requirements:
        return Path(sys.executable)
    mark = hashlib.sha256("\n".join((sys.version, *requirements)).encode()).hexdigest()[:12]
    cache = Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "ems")
    folder = cache / "bench" / f"{name}-{mark}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    python, ready = folder / "bin" / "python", folder / "ready"
    with exclusive(folder.parent / f"{folder.name}.lock", _INSTALL_S):
        if not ready.exists():
            _run([sys.executable, "-m", "venv", "--clear", str(folder)])
            _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements])
            ready.touch()
    return python


def _run(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_INSTALL_S)
    if done.returncode != 0:
        raise ServerFailed(f"{' '.join(argv)} failed: {done.stderr[-1000:]}")
