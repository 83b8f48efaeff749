"""Builds sdist and wheel from what git tracks, the same bytes each time, and compares what they hold with it."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Folder in git -> folder in the wheel. What is elsewhere is in the sdist only.
LIBRARY = {"emsworker/": "emsworker/", "cli/": "emsworker/cli/", "pyspark_ems/": "pyspark_ems/", "kombu_ems/": ""}
_MADE = ("PKG-INFO", "emsworker.egg-info/")  # by the build; and it adds a section to setup.cfg
_BUILD_S = 300
# What a second build has of its own, besides its folder and its time.
_ELSEWHERE = {"TZ": "Pacific/Kiritimati", "LC_ALL": "C", "PYTHONHASHSEED": "7"}

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
    """Write files into a new folder, with the modes that git keeps: whether they can be executed, and nothing else."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(_mode((ROOT / name).stat().st_mode))
    return folder


def _mode(found: int) -> int:
    return 0o755 if found & 0o100 else 0o644


def committed_at() -> int:
    """The time of the checkout's commit, in seconds since 1970: what packages give as the time of their files."""
    return int(_git("log", "-1", "--format=%ct"))


def build(what: str, source: Path, folder: Path, *, elsewhere: bool = False) -> Path:
    """Build one package and return its file.

    Its bytes depend on the sources, on the commit's time, and on the versions of Python and setuptools alone.

    Args:
        what: ``sdist`` or ``wheel``.
        source: a folder with the sources, or an sdist, of which only a wheel can be made.
        folder: where it is put; nothing else may be there.
        elsewhere: build in another time zone, with another locale and another order of sets.
    """
    epoch = committed_at()
    surroundings = {"SOURCE_DATE_EPOCH": str(epoch)} | (_ELSEWHERE if elsewhere else {})
    if source.is_dir():
        command = ["build", "--quiet", f"--{what}", "--outdir", str(folder), str(source)]
    else:
        command = ["pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source)]
    run([sys.executable, "-m", *command], surroundings)
    (made,) = folder.iterdir()
    if what == "sdist":
        pack_again(made, epoch)
    return made


def pack_again(sdist: Path, epoch: int) -> None:
    """Write an sdist anew without times, owners, order and modes, which setuptools takes from the machine.

    Args:
        sdist: the file.
        epoch: the time that all of it gets, in seconds since 1970.
    """
    held: dict[str, tuple[tarfile.TarInfo, bytes]] = {}
    with tarfile.open(sdist) as archive:
        for member in archive:
            reader = archive.extractfile(member)
            held[member.name] = member, reader.read() if reader else b""
    with (
        sdist.open("wb") as file,
        gzip.GzipFile("", "wb", mtime=epoch, fileobj=file) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in sorted(held):
            member, content = held[name]
            plain = tarfile.TarInfo(name)
            plain.type, plain.size, plain.mtime, plain.mode = member.type, member.size, epoch, _mode(member.mode)
            archive.addfile(plain, io.BytesIO(content))


def run(command: list[str], surroundings: Mapping[str, str] | None = None) -> None:
    """Run a step to its end; its output is shown only if it fails.

    With PYTHONPATH on the checkout pip would find its egg-info, and take the wheel of the same version for installed.

    Args:
        command: the program with its arguments.
        surroundings: variables that it gets besides.
    """
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | dict(surroundings or {})
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_BUILD_S, check=False, env=environ,
        umask=0o022, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def build_twice(folder: Path, target: Path) -> None:
    """Build sdist and wheel twice; end the program unless both builds are the same, and hold what git holds.

    The second wheel is made from the second sdist, in other surroundings.

    Args:
        folder: for what is needed meanwhile.
        target: where sdist and wheel are put.
    """
    files = tracked()
    sources = copy(files, folder / "source"), copy(files, folder / "the same again")

    def first() -> tuple[Path, Path]:
        return build("sdist", sources[0], folder / "sdist"), build("wheel", sources[0], folder / "wheel")

    def second() -> tuple[Path, Path]:
        sdist = build("sdist", sources[1], folder / "sdist-again", elsewhere=True)
        return sdist, build("wheel", sdist, folder / "wheel-of-sdist", elsewhere=True)

    with ThreadPoolExecutor(2) as pool:
        (sdist, wheel), (sdist_again, wheel_again) = (one.result() for one in (pool.submit(first), pool.submit(second)))
    wrong = [f"git does not track {name}; run: git add {name}" for name in forgotten()]
    wrong += differences("the sdist", files, held_by_sdist(sdist))
    wrong += differences("the wheel", library(files), held_by_wheel(wheel))
    wrong += unequal("sdist", sdist, sdist_again) + unequal("wheel", wheel, wheel_again)
    if wrong:
        raise SystemExit("\n".join(wrong))
    target.mkdir()
    for one in (sdist, wheel):
        shutil.copy(one, target)


def unequal(what: str, first: Path, second: Path) -> list[str]:
    """A line if two builds of a package are not the same bytes."""
    if first.read_bytes() == second.read_bytes():
        return []
    held = held_by_wheel if first.suffix == ".whl" else held_by_sdist
    one, other = held(first), held(second)
    changed = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    return [f"two builds of the {what} differ in {', '.join(changed[:5]) or 'metadata, times or modes'}"]


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
