"""Builds sdist and wheel from what git tracks, and compares what they hold with it."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Folder in git -> folder in the wheel. What is elsewhere is in the sdist only.
LIBRARY = {"emsworker/": "emsworker/", "cli/": "emsworker/cli/", "pyspark_ems/": "pyspark_ems/", "kombu_ems/": ""}
_MADE = ("PKG-INFO", "emsworker.egg-info/")  # by the build; and it adds a section to setup.cfg
_BUILD_S = 300

Files = Mapping[str, bytes]


def tracked() -> dict[str, bytes]:
    """Every file that git tracks, as it is in the working tree."""
    names = _git("ls-files", "-z").split("\0")
    return {name: (ROOT / name).read_bytes() for name in names if name and (ROOT / name).is_file()}


def forgotten() -> list[str]:
    """Files of the library that git does not track: `pip install .` would take them, a clone does not have them."""
    return [name for name in _git("ls-files", "-oz", "--exclude-standard", *LIBRARY).split("\0") if name]


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def copy(files: Files, folder: Path) -> Path:
    """Write files into a new folder, with the modes that they have in the working tree."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod((ROOT / name).stat().st_mode)
    return folder


def build(what: str, source: Path, folder: Path) -> Path:
    """Build one package and return its file.

    Args:
        what: ``sdist`` or ``wheel``.
        source: a folder with the sources, or an sdist, of which only a wheel can be made.
        folder: where it is put; nothing else may be there.
    """
    if source.is_dir():
        command = ["build", "--quiet", f"--{what}", "--outdir", str(folder), str(source)]
    else:
        command = ["pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source)]
    run([sys.executable, "-m", *command])
    (made,) = folder.iterdir()
    return made


def run(command: list[str]) -> None:
    """Run a step to its end; its output is shown only if it fails.

    With PYTHONPATH on the checkout pip would find its egg-info, and take the wheel of the same version for installed.
    """
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S, check=False, env=environ)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def held_by_sdist(path: Path) -> dict[str, bytes]:
    """What an sdist holds, without what the build made."""
    with tarfile.open(path) as archive:
        found = {
            member.name.partition("/")[2]: reader.read()
            for member in archive
            if (reader := archive.extractfile(member)) is not None
        }
    return {name: content for name, content in found.items() if not name.startswith(_MADE)}


def held_by_wheel(path: Path) -> dict[str, bytes]:
    """What a wheel installs, without its metadata."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        return {name: archive.read(name) for name in names}


def library(files: Files) -> dict[str, bytes]:
    """The files of the library, by the names that they have in the wheel."""
    return {
        installed + name.removeprefix(folder): content
        for folder, installed in LIBRARY.items()
        for name, content in files.items()
        if name.startswith(folder)
    }


def differences(what: str, wanted: Files, found: Files) -> list[str]:
    """What a package lacks, what it should not have, and what is different in it; a line for each file."""
    changed = [name for name in wanted.keys() & found.keys() - {"setup.cfg"} if wanted[name] != found[name]]
    return sorted(
        [f"{what} lacks {name}" for name in wanted.keys() - found.keys()]
        + [f"{what} has {name}, which git does not" for name in found.keys() - wanted.keys()]
        + [f"{what} has another {name} than git" for name in changed]
    )
