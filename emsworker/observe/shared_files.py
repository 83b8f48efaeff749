"""Files of counters that processes share by mapping them into memory, with their space reserved before it is used.

A mapped page for which a full file system has no space ends the process by SIGBUS, and 64 MB is all that a container's
``/dev/shm`` has. A file that does not fit goes on in a folder elsewhere, and a link stands in its place.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

log = logging.getLogger(__name__)

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_ELSEWHERE = "elsewhere"  # a link in the folder of the files, to the folder for those that do not fit
_FIRST_BYTES = 1 << 16  # of a file of prometheus_client
_FILES = 4  # for which a folder must have space to be used at all
_ENTRY_BYTES = 32  # of an entry beside its key, at most


@contextmanager
def shared_folder(where: Path | None) -> Iterator[Path]:
    """Make a folder for shared files, and delete it at the end.

    Args:
        where: below this one, by default that of temporary files; if it is full, there, too.

    Raises:
        OSError: no folder can be written.
    """
    elsewhere = Path(tempfile.mkdtemp(prefix="ems-metrics-"))
    folder = elsewhere if where is None else _make_below(where) or elsewhere
    try:
        if folder != elsewhere:
            (folder / _ELSEWHERE).symlink_to(elsewhere)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(elsewhere, ignore_errors=True)


def _make_below(where: Path) -> Path | None:
    folder = Path(tempfile.mkdtemp(prefix="ems-metrics-", dir=where))
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            _allocate(file, _FILES * _FIRST_BYTES)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        if error.errno not in _FULL:
            raise
        log.warning(
            "%s has no space for the counts of the processes; they are kept in %s", where, tempfile.gettempdir()
        )
        return None
    return folder


def _allocate(file: IO[bytes], size: int) -> None:
    if hasattr(os, "posix_fallocate"):  # macOS has none, and no folder in memory either
        os.posix_fallocate(file.fileno(), 0, size)


def reserve(path: Path, size: int) -> None:
    """Reserve the space of a shared file, which is made if need be; it goes on elsewhere if there is none.

    Raises:
        OSError: there is none elsewhere either.
    """
    try:
        with path.open("ab") as file:
            _allocate(file, size)
    except OSError as error:
        if error.errno not in _FULL or path.is_symlink():
            raise
        _go_on_elsewhere(path, size)


def _go_on_elsewhere(path: Path, size: int) -> None:
    target = (path.parent / _ELSEWHERE).resolve() / path.name
    shutil.copyfile(path, target)
    with target.open("ab") as file:
        _allocate(file, size)
    link = path.with_suffix(".link")
    link.symlink_to(target)
    link.replace(path)  # at once: a reader finds the one file or the other
    log.warning("%s has no space left; counts go on in %s", path.parent, target.parent)


def use_reserved_files() -> None:
    """Let prometheus_client reserve the space of the files in which it counts."""
    from prometheus_client import values as prometheus_values
    from prometheus_client.mmap_dict import MmapedDict

    base: Any = MmapedDict  # it has no types

    class ReservedDict(base):  # type: ignore[misc]
        """File of prometheus_client with reserved space."""

        _f: Any
        _m: Any
        _fname: str
        _used: int
        _capacity: int

        def __init__(self, filename: str, read_mode: bool = False) -> None:
            if not read_mode:
                reserve(Path(filename), _FIRST_BYTES)
            super().__init__(filename, read_mode)

        def _init_value(self, key: str) -> None:
            needed, capacity = self._used + len(key.encode()) + _ENTRY_BYTES, self._capacity
            while capacity < needed:
                capacity *= 2
            if capacity > self._capacity:
                self._grow(capacity)
            super()._init_value(key)

        def _grow(self, capacity: int) -> None:
            reserve(Path(self._fname), capacity)
            file = Path(self._fname).open("a+b")  # noqa: SIM115 - it may be another one now
            self._m.close()
            self._f.close()
            self._f, self._m, self._capacity = file, mmap.mmap(file.fileno(), capacity), capacity

    module: Any = prometheus_values
    module.MmapedDict = ReservedDict
