"""The suites' sources: what the projects have published, by version and checksum, kept in the cache folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

_DOWNLOAD_S = 600.0


@dataclass(frozen=True)
class Source:
    """A source distribution.

    Args:
        project: its name on the package index.
        version: one whose exceptions are known (`exceptions.toml`).
        sha256: of the archive.
    """

    project: str
    version: str
    sha256: str

    @property
    def name(self) -> str:
        """The archive's name without its ending, which is also that of its folder."""
        return f"{self.project}-{self.version}"


# Of each minor version that is supported, the last one.
CELERY = (
    Source("celery", "5.5.3", "6c972ae7968c2b5281227f01c3a3f984037d21c5129d07bf3550cc2afc6b10a5"),
    Source("celery", "5.6.3", "177006bd2054b882e9f01be59abd8529e88879ef50d7918a7050c5a9f4e12912"),
    Source("celery", "5.7.0", "6a5dfcf6662287204f009a02002b9e66c83d4105e47ebabdc7079108772fc6f0"),
)
KOMBU = (
    Source("kombu", "5.5.4", "886600168275ebeada93b888e831352fe578168342f0d1d5833d88ba0d847363"),
    Source("kombu", "5.6.2", "8060497058066c6f5aed7c26d7cd0d3b574990b09de842a8c5aaed0b92cc5a55"),
    Source("kombu", "5.7.0", "31e62fdfd2381caa3422f8e02b84a491d9a2180ddda74507b57f4cb1e1c2c2c9"),
)


def of_minor(sources: tuple[Source, ...], minor: str) -> Source:
    """The source of a version like ``5.6``.

    Raises:
        ValueError: there is none.
    """
    for source in sources:
        if source.version.startswith(f"{minor}."):
            return source
    known = ", ".join(source.version for source in sources)
    raise ValueError(f"{sources[0].project} {minor}: its suite is not known; known are {known}")


def installed(sources: tuple[Source, ...]) -> Source:
    """The source of the version that this interpreter has.

    Raises:
        ValueError: its results are not known.
    """
    found = version(sources[0].project)
    source = of_minor(sources, found.rpartition(".")[0])
    if source.version != found:
        raise ValueError(f"{source.project} {found} is installed, and the suite of {source.version} is known")
    return source


def unpacked(source: Source) -> Path:
    """The folder with the project's tests and its settings of pytest, and without its library.

    The library is left out so that what is tested is what is installed.

    Raises:
        ValueError: the archive is another one than that whose results are known.
    """
    cache = Path(os.environ.get("EMS_CACHE_DIR") or Path.home() / ".cache" / "ems") / "suites"
    folder = cache / f"{source.name}-{source.sha256[:8]}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as work:
            found = _unpack(_download(source, Path(work)), source)
            with suppress(OSError):  # another run was faster
                found.rename(folder)
    return folder


def _download(source: Source, folder: Path) -> Path:
    wanted = ("--no-deps", "--no-binary", ":all:", f"{source.project}=={source.version}")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", *wanted]
    subprocess.run([*command, "--dest", str(folder)], check=True, timeout=_DOWNLOAD_S, stdout=sys.stderr)
    archive = folder / f"{source.name}.tar.gz"
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != source.sha256:
        raise ValueError(f"{archive.name} has the checksum {found}, expected {source.sha256}")
    return archive


def _unpack(archive: Path, source: Source) -> Path:
    folder = archive.parent / "unpacked"
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    library = folder / source.name / source.project
    if not (folder / source.name / "t" / "integration").is_dir():
        raise ValueError(f"{archive.name} holds no t/integration")
    shutil.rmtree(library)
    return folder / source.name


if __name__ == "__main__":  # `./dev test-celery --celery 5.6` installs these
    print(*(f"{one.project}=={one.version}" for one in (of_minor(known, sys.argv[1]) for known in (CELERY, KOMBU))))
