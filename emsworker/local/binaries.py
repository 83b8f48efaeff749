"""Search for server programs, also in folders of Linux distributions and Homebrew that are not in the PATH."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from emsworker.local.errors import ServerFailed

_EXTRA_FOLDERS = (
    "/usr/sbin",
    "/usr/libexec",
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/local/libexec",
    "/usr/local/mysql/bin",
    "/usr/local/opt/mariadb/bin",
    "/usr/local/opt/mysql/bin",
    "/opt/homebrew/bin",
    "/opt/homebrew/opt/mariadb/bin",
    "/opt/homebrew/opt/mysql/bin",
)
_VERSION_TIMEOUT_S = 30


def search_path() -> str:
    """Return the folders to look in, the PATH first, joined as in PATH."""
    return os.pathsep.join((os.environ.get("PATH", os.defpath), *_EXTRA_FOLDERS))


def find_programs(names: Sequence[str]) -> Iterator[Path]:
    """Yield every executable with one of these names, in the order of the search path.

    Args:
        names: file names, the preferred one first.
    """
    for name in names:
        for folder in search_path().split(os.pathsep):
            if found := shutil.which(name, path=folder):
                yield Path(found)


def clean_environment() -> Mapping[str, str]:
    """Return a small environment for a server.

    The caller's variables such as LD_PRELOAD, MYSQL_HOME or TMPDIR would otherwise affect a private server.
    """
    return {"PATH": search_path(), "HOME": os.environ.get("HOME", "/"), "LC_ALL": "C"}


def version_line(command: Sequence[str]) -> str:
    """Return what `command --version` prints.

    Args:
        command: the program with the arguments that must come before any other.

    Raises:
        ServerFailed: the program cannot be run.
    """
    argv = [*command, "--version"]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, env=clean_environment(), check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ServerFailed(f"{' '.join(argv)} does not run: {error}") from error
    return done.stdout.strip()


def version_number(line: str) -> str:
    """Return the version in a line such as `mysqld  Ver 9.7.4 for Linux` or `Redis server v=7.0.15 sha=...`.

    Returns:
        The version, or the whole line if it has another form.
    """
    found = re.search(r"(?:\bVer |\bv=)(\S+)", line)
    return found.group(1) if found else line
