"""The wheel of a checkout: its size, and the processor time in which what it installs starts."""

from __future__ import annotations

import compileall
import os
import resource
import shutil
import statistics
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from verification.installed import packages

_RUNS = 15
_STARTS = {
    "start-up, ms of processor: ems --version": ("-m", "emsworker", "--version"),
    "start-up, ms of processor: ems --help": ("-m", "emsworker", "--help"),
    "start-up, ms of processor: import emsworker": ("-c", "import emsworker"),
}


def measure(roots: Sequence[Path], folder: Path) -> list[dict[str, int]]:
    """Return, for each checkout, the size of its wheel and the median start-up times of what is in it.

    The runs of the checkouts alternate, so that the load of the machine meets all of them alike.

    Args:
        roots: the checkouts.
        folder: an empty one, for the wheels and what is in them.
    """
    wheels = [_build(root, folder / str(number)) for number, root in enumerate(roots)]
    homes = [_unpack(wheel) for wheel in wheels]
    found = [{"wheel, bytes": wheel.stat().st_size} for wheel in wheels]
    for name, arguments in _STARTS.items():
        times: list[list[float]] = [[] for _ in roots]
        for _ in range(_RUNS):
            for home, seen in zip(homes, times, strict=True):
                seen.append(_start(home, arguments))
        for figures, seen in zip(found, times, strict=True):
            figures[name] = round(statistics.median(seen) * 1000)
    return found


def _build(root: Path, folder: Path) -> Path:
    """Build a wheel of the files that git tracks, which leaves the checkout as it is."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    for name in listed.split("\0"):
        if (root / name).is_file():  # in the working tree, too
            path = folder / "source" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, path)
    return packages.build("wheel", folder / "source", folder / "wheel")


def _unpack(wheel: Path) -> Path:
    """Install a wheel into a folder as pip would: its files, compiled; its entry points are found on the path."""
    home = wheel.parents[1] / "home"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(home)
    compileall.compile_dir(home, quiet=1)
    return home


def _start(home: Path, arguments: Sequence[str]) -> float:
    """Return the seconds of processor time that a program takes: other programs change the time by a clock more."""
    environ = {**os.environ, "PYTHONPATH": str(home)}
    before_s = _processor_s()
    subprocess.run([sys.executable, *arguments], cwd=home, env=environ, stdout=subprocess.DEVNULL, check=True)
    return _processor_s() - before_s


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
