"""The folder of an archive: on this machine, or on a file system that PyArrow reads."""

from __future__ import annotations

import os
import shutil
from pathlib import Path, PurePosixPath
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from emsworker.extending.declaration import require
from emsworker.extending.errors import ConfigError, Problem

TEMPORARY = ".tmp"


class ReadableFolder(Protocol):
    """A folder whose small files can be read by their paths below it, with ``/`` between their parts."""

    def url(self, path: str = "") -> str:
        """Return a path as a URL."""

    def read(self, path: str) -> str:
        """Return the text of a small file."""

    def children(self, path: str) -> list[str]:
        """List the names in a folder, sorted, without hidden ones; empty if the folder does not exist."""


class Folder(ReadableFolder, Protocol):
    """A folder that can be written."""

    def write(self, path: str, text: str) -> None:
        """Create or replace a small file atomically."""

    def files(self, path: str) -> dict[str, int]:
        """Map the relative paths of all files below a folder to their sizes; hidden files are left out."""

    def remove(self, path: str) -> None:
        """Delete a file, or a folder with its content; do nothing if it does not exist."""

    def settle(self, path: str) -> None:
        """Ensure that the files below a folder survive a crash of the machine."""


def is_hidden(path: str) -> bool:
    """Return whether a part of a path begins with a dot or an underscore."""
    return any(part.startswith((".", "_")) for part in PurePosixPath(path).parts)


class LocalFolder:
    """A folder on this machine, or on a disk that all machines share.

    Files are named by their paths below the folder, with ``/`` between their parts.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, path: str = "") -> Path:
        """Return a path below the folder as one of this machine."""
        return self._root / path

    def url(self, path: str = "") -> str:
        """Return a path as a URL for Spark."""
        return f"file://{self._root / path}"  # not percent-encoded: Hadoop takes it as it is

    def write(self, path: str, text: str) -> None:
        """Create or replace a small file atomically; when this returns, the file survives a crash."""
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}{TEMPORARY}")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        for folder in (target.parent, *target.parent.parents):
            _fsync(folder)
            if folder == self._root:
                break

    def read(self, path: str) -> str:
        """Return the text of a small file."""
        return (self._root / path).read_text(encoding="utf-8")

    def children(self, path: str) -> list[str]:
        """List the names in a folder, sorted; empty if the folder does not exist."""
        folder = self._root / path
        return sorted(one.name for one in folder.iterdir() if not is_hidden(one.name)) if folder.is_dir() else []

    def files(self, path: str) -> dict[str, int]:
        """Map the relative paths of all files below a folder to their sizes; hidden files are left out."""
        folder = self._root / path
        found = {one.relative_to(folder).as_posix(): one for one in folder.rglob("*") if one.is_file()}
        return {name: one.stat().st_size for name, one in sorted(found.items()) if not is_hidden(name)}

    def remove(self, path: str) -> None:
        """Delete a file, or a folder with its content; do nothing if it does not exist."""
        target = self._root / path
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)

    def settle(self, path: str) -> None:
        """Ensure that the files that Spark wrote below a folder survive a crash of the machine."""
        folder = self._root / path
        for one in sorted(folder.rglob("*"), reverse=True):
            _fsync(one)
        for one in (folder, *folder.parents):
            _fsync(one)
            if one == self._root:
                break


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class ArrowFolder:
    """A folder on a file system of PyArrow (``s3://``, ``gs://``, ``abfss://``, ``hdfs://``), for reading.

    Args:
        location: its URL.

    Raises:
        ConfigError: PyArrow cannot use it.
        ExtraMissing: PyArrow is not installed.
    """

    def __init__(self, location: str) -> None:
        require("arrow", f"an archive in {location}")
        from pyarrow import ArrowException, fs

        self._root = location.rstrip("/")
        try:
            self._system, self._path = fs.FileSystem.from_uri(self._root.replace("s3a://", "s3://", 1))
        except (ArrowException, OSError) as error:
            fix = f"PyArrow cannot use it ({error}); check the scheme and the credentials"
            raise ConfigError([Problem("folder", location, fix)]) from None

    def url(self, path: str = "") -> str:
        """Return a path as a URL with the scheme of the folder."""
        return f"{self._root}/{path}" if path else self._root

    def read(self, path: str) -> str:
        """Return the text of a small file."""
        with self._system.open_input_stream(f"{self._path}/{path}") as stream:
            return bytes(stream.readall()).decode()

    def children(self, path: str) -> list[str]:
        """List the names in a folder, sorted; empty if the folder does not exist."""
        from pyarrow import fs

        found: list[Any] = self._system.get_file_info(fs.FileSelector(f"{self._path}/{path}", allow_not_found=True))
        return sorted(one.base_name for one in found if not is_hidden(one.base_name))


def is_local(location: str) -> bool:
    """Return whether a location is a path or a ``file:`` URL."""
    scheme = urlsplit(location).scheme
    return len(scheme) < 2 or scheme == "file"


def local_folder(location: str, name: str = "folder") -> LocalFolder:
    """Open a folder on this machine.

    Args:
        location: a path or a ``file:`` URL.
        name: of the option, for the error.

    Raises:
        ConfigError: there is something else at that place.
    """
    parts = urlsplit(location)
    path = Path(unquote(parts.path) if parts.scheme == "file" else location).expanduser().absolute()
    if path.exists() and not path.is_dir():
        raise ConfigError([Problem(name, location, "is no folder; name one, which is made if it is missing")])
    return LocalFolder(path)


def open_readable(location: str) -> ReadableFolder:
    """Open the folder at a location, a path or a URL, for reading.

    Raises:
        ConfigError: it cannot be used.
        ExtraMissing: it is a URL, and PyArrow is not installed.
    """
    return local_folder(location) if is_local(location) else ArrowFolder(location)
