"""A folder on this machine or on a file system of Spark's Hadoop client (``hdfs://``, ``s3a://``, ``abfss://``).

Our own files become visible atomically: written under another name and renamed; on object stores one PUT does the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from emsworker.arrow.folder import TEMPORARY, Folder, is_hidden, is_local, local_folder
from emsworker.extending.errors import ConfigError, Problem


class HadoopFolder:
    """A folder reached through the Hadoop client of the driver's Java."""

    def __init__(self, spark: Any, location: str) -> None:
        self._jvm = spark._jvm
        self._root = location.rstrip("/")
        configuration = spark.sparkContext._jsc.hadoopConfiguration()
        try:
            self._system = self._path("").getFileSystem(configuration)
        except Exception as error:  # py4j gives Java's exceptions as one class
            fix = f"Spark cannot use it ({_first_line(error)}); check the scheme, and that its jars are installed"
            raise ConfigError([Problem("--folder", location, fix)]) from None

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.url(path))

    def url(self, path: str = "") -> str:
        """Return a path as a URL for Spark."""
        return f"{self._root}/{path}" if path else self._root

    def write(self, path: str, text: str) -> None:
        """Create or replace a small file: by a rename if it is atomic, else in one PUT."""
        target = self._path(path)
        temporary = self._path(str(PurePosixPath(path).with_name(f".{PurePosixPath(path).name}{TEMPORARY}")))
        renames = self._system.getUri().getScheme() in ("hdfs", "file", "abfs", "abfss", "viewfs")
        out = self._system.create(temporary if renames else target, True)
        try:
            out.write(bytearray(text.encode()))
            if renames:
                out.hsync()
        finally:
            out.close()
        if renames:
            self._system.delete(target, False)
            if not self._system.rename(temporary, target):
                raise OSError(f"{target} cannot be renamed from {temporary}")

    def read(self, path: str) -> str:
        """Return the text of a small file."""
        stream = self._system.open(self._path(path))
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)).decode()
        finally:
            stream.close()

    def children(self, path: str) -> list[str]:
        """List the names in a folder."""
        if not self._system.exists(self._path(path)):
            return []
        names = [status.getPath().getName() for status in self._system.listStatus(self._path(path))]
        return sorted(name for name in names if not is_hidden(name))

    def files(self, path: str) -> dict[str, int]:
        """Map the files below a folder to their sizes."""
        root = self._path(path)
        if not self._system.exists(root):
            return {}
        prefix = self._system.makeQualified(root).toUri().getPath().rstrip("/") + "/"
        found = {one.getPath().toUri().getPath().removeprefix(prefix): one.getLen() for one in self._walk(root)}
        return {name: int(size) for name, size in sorted(found.items()) if not is_hidden(name)}

    def _walk(self, root: Any) -> Iterator[Any]:
        listing = self._system.listFiles(root, True)
        while listing.hasNext():
            yield listing.next()

    def remove(self, path: str) -> None:
        """Delete a file or a folder."""
        self._system.delete(self._path(path), True)

    def settle(self, path: str) -> None:
        """Do nothing: such file systems replicate closed files to several machines."""


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def open_folder(spark: Any, location: str) -> Folder:
    """Open the folder at a location: a path, or a URL of one of Spark's file systems.

    Raises:
        ConfigError: it cannot be used.
    """
    return local_folder(location, "--folder") if is_local(location) else HadoopFolder(spark, location)
