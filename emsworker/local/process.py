"""Start and signals of server processes; no other process is ever signalled."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from emsworker.local.binaries import clean_environment
from emsworker.local.errors import ServerFailed

_POLL_S = 0.02
_PROC = Path("/proc")

# Servers that this process started: only a parent can reap them, from any object.
_children: dict[int, subprocess.Popen[bytes]] = {}


def spawn(argv: Sequence[str], folder: Path, log: Path) -> int:
    """Start a server in its own session, so that Ctrl-C in the terminal does not reach it.

    Returns:
        Its process id.

    Raises:
        ServerFailed: the program cannot be run.
    """
    with log.open("ab") as output:
        try:
            child = subprocess.Popen(
                argv,
                cwd=folder,
                env=clean_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except OSError as error:
            raise ServerFailed(f"{argv[0]} does not run: {error}") from error
    _children[child.pid] = child
    return child.pid


def runs_with(pid: int, argument: str) -> bool:
    """Return whether a process is alive and was started with this argument.

    A process id is reused after its process has ended, so the id alone proves nothing; but a child of ours keeps
    its id until we reap it. Its command line is less reliable: the kernel shows an empty one for a moment after exec
    (subprocess returns that early), and again while a killed process is torn down.

    Args:
        pid: the process id.
        argument: an argument that only our server has.
    """
    reap(pid)
    if child := _children.get(pid):
        return argument in cast(Sequence[str], child.args)
    if _PROC.is_dir():
        return argument in _arguments(pid)
    listing = subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True)
    return f" {argument} " in f" {listing.stdout.strip()} "


def _arguments(pid: int) -> list[str]:
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().decode("utf-8", "surrogateescape").split("\0")
    except OSError:
        return []


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal; a process that has already ended is not an error."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def wait_gone(pid: int, timeout_s: float) -> bool:
    """Wait until a process has ended and released its files.

    Returns:
        True if it has ended.
    """
    deadline = time.monotonic() + timeout_s
    while _exists(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _exists(pid: int) -> bool:
    if child := _children.get(pid):
        return child.poll() is None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Return whether a process has ended and only waits to be reaped by its parent."""
    folder = _PROC / str(pid)
    try:
        status = (folder / "stat").read_text("utf-8", "replace")
        threads = len(list((folder / "task").iterdir()))
    except OSError:
        return False
    # The second field is the program's name in brackets, which may itself contain brackets and blanks. A main thread
    # is a zombie before the other threads have released their files.
    return status.rpartition(")")[2].split()[0] == "Z" and threads == 1


def reap(pid: int) -> None:
    """Reap a child of this process if it has ended.

    Args:
        pid: the process id; processes that are not children are ignored.
    """
    child = _children.get(pid)
    if child is not None and child.poll() is not None:
        _children.pop(pid, None)
