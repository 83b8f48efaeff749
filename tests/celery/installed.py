"""The wheel, installed into an environment of its own, outside the repository."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

from verification.installed.packages import copy, run, tracked


def environment(folder: Path) -> Path:
    """Build the wheel and install it without our checkout; returns the interpreter that has it and Celery.

    Args:
        folder: a new one.
    """
    source = copy(tracked(), folder / "source")
    wheels = folder / "wheels"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run([*pip, "wheel", "--no-deps", "--use-pep517", "--wheel-dir", str(wheels), str(source)])
    (wheel,) = wheels.iterdir()
    run([sys.executable, "-m", "venv", str(folder / "env")])
    python = folder / "env" / "bin" / "python"
    run([str(python), "-I", "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps", str(wheel)])
    # Celery, Django and what they need come from here; an editable installation is not found on such a path.
    found = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    (Path(found) / "others.pth").write_text(sysconfig.get_path("purelib"))
    return python
