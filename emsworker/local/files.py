"""Atomic replacement of small files, and a lock between processes."""

import fcntl
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from emsworker.local.errors import ServerFailed

_LOCK_POLL_S = 0.02
_LOG_TAIL_BYTES = 4000


@dataclass(frozen=True)
class ServerState:
    """State of a server that is saved between processes; includes its passwords.

    Attributes:
        kind: `mariadb`, `mysql` or `redis`.
        port: the TCP port on 127.0.0.1.
        socket: the path of the private Unix socket.
        password: the password of the ordinary user.
        admin_password: the password of the administrator.
        pid: the process id when it was last started.
    """

    kind: str
    port: int
    socket: str
    password: str
    admin_password: str
    pid: int | None = None

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """Return the saved state, or None if there is none.

        Raises:
            ServerFailed: the file is damaged or from another version.
        """
        try:
            return cls(**json.loads(path.read_text("utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise ServerFailed(f"{path} is not a state file of this version: {error}") from error

    def save(self, path: Path) -> None:
        """Write the state, readable by its owner only."""
        write_private(path, json.dumps(asdict(self), indent=2) + "\n")


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically; its mode is 0600 from the first byte on."""
    # mkstemp creates the file with mode 0600, and a crash before the rename leaves the old file intact.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def plain_path(folder: Path) -> Iterator[Path]:
    """Yield a path to a folder that is safe in shell scripts: server set-up scripts don't quote their arguments.

    Args:
        folder: an existing folder. If its path has a blank or the like, a link to it is made and removed.
    """
    if re.fullmatch(r"[\w./-]+", str(folder), re.ASCII):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="ems-", dir="/tmp") as place:
        link = Path(place) / "folder"
        link.symlink_to(folder, target_is_directory=True)
        yield link


@contextmanager
def exclusive(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold a lock file; the kernel releases it when its holder dies.

    Raises:
        ServerFailed: it is still held by another process or thread after that time.
    """
    deadline = time.monotonic() + timeout_s
    with path.open("a") as file:
        while not _try_lock(file.fileno()):
            if time.monotonic() > deadline:
                raise ServerFailed(f"another process has held {path} for {timeout_s:g} s")
            time.sleep(_LOCK_POLL_S)
        yield


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def tail(path: Path) -> str:
    """Return the end of a log file, at most 4,000 bytes; empty if there is no file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return ""
    return content[-_LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()
