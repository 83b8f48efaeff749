"""Somebody who has installed a wheel and knows the documentation, and nothing else of the repository."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from emsworker.local import LocalStack
from tests.docs.snippets import Reader
from verification.installed.packages import ROOT, run

_COMMAND_S = 120
_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
# Without extras these are missing, and nothing else is.
_EVERY_MODULE = """
import importlib, pkgutil, emsworker
def ignore(name): pass
for found in pkgutil.walk_packages(emsworker.__path__, "emsworker.", onerror=ignore):
    if found.name.endswith("__main__"): continue
    try: importlib.import_module(found.name)
    except ModuleNotFoundError as error:
        optional = "authlib celery django django_tasks httpx2 jinja2 joserfc polars pyarrow pyiceberg pyspark pytest starlette uvicorn".split()
        if error.name.partition(".")[0] not in optional: raise
    except emsworker.ExtraMissing: pass  # an integration with something that is not installed
print(emsworker.__file__)
"""
_EVERY_HELP = """
import click
from emsworker.cli.main import ems, main
def walk(command, path=()):
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from walk(command.get_command(context, name), (*path, name))
for path in list(walk(ems)):
    try: main([*path, "--help"])
    except SystemExit as end: assert not end.code, path
"""


def make_environment(folder: Path) -> Path:
    """Create a virtual environment without any package, and return its Python."""
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    return folder / "bin" / "python"


def install(python: Path, *packages: str) -> None:
    """Install packages into an environment, by the pip of this one."""
    run([sys.executable, "-m", "pip", "--quiet", "--python", str(python), "install", *packages])


@dataclass(frozen=True)
class User:
    """A home of somebody's own, with a blank in its name.

    Args:
        python: of the environment that the wheel is installed in.
        home: a folder that does not exist yet.
    """

    python: Path
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        """Nothing of ours, but where a MySQL was unpacked for tests and where temporary files go."""
        kept = {name: os.environ[name] for name in ("EMS_MYSQL_ROOT", "TMPDIR") if name in os.environ}
        path = f"{self.python.parent}:{_SYSTEM_PATH}"
        return kept | {"HOME": str(self.home), "LANG": "C", "PATH": path, "PYTHONUNBUFFERED": "1"}

    def run(self, *command: str) -> str:
        """Run a command in the home and return what it printed."""
        done = subprocess.run(
            [str(self.python.parent / command[0]), *command[1:]], cwd=self.home, env=self.environment,
            capture_output=True, text=True, timeout=_COMMAND_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def follow(self, page: str) -> str:
        """Do what a page says, in a folder of the home; returns what the terminals showed.

        The page starts the local stream, which goes on running.
        """
        folder = self.home / "shop"
        folder.mkdir(parents=True)
        stack = LocalStack(self.home / ".local" / "share" / "ems" / "local")
        # `python -m` finds what is in its folder; scripts and `ems` find an app there by PYTHONPATH or by themselves.
        Reader(folder, self.environment, lambda: stack.database.url).follow(ROOT / page)
        return "".join(log.read_text(encoding="utf-8") for log in sorted(folder.glob("terminal-*.log")))

    def stop(self) -> None:
        """Stop the local stream, whatever has happened."""
        if self.home.exists():
            self.run("ems", "local", "stop")


def try_everything(python: Path, home: Path) -> None:
    """Do what the README, the quickstart and the help pages say.

    Raises:
        AssertionError: something is not as they say.
    """
    first = User(python, home / "the first app")
    try:
        said = first.follow("README.md")
        assert "Thank you, Ada!" in said and "order 7: 12.5 EUR" in said, said
        assert first.run("ems", "local", "sql", "-e", "SELECT * FROM ledger") == "id\ttotal\n7\t12.50\n"
        _try_commands(first)
    finally:
        first.stop()
    second = User(python, home / "the quickstart")
    try:
        said = second.follow("docs/quickstart.md")
        assert "order 7: 12.5 EUR, attempt 1" in said and "offset 1 was written at" in said, said
    finally:
        second.stop()


def _try_commands(user: User) -> None:
    where = user.run("python", "-c", _EVERY_MODULE).strip()
    assert Path(where).is_relative_to(user.python.parents[1]), where
    shown = user.run("python", "-c", _EVERY_HELP)
    assert shown.count("Usage: ems") > 60, shown
    assert user.run("python", "-m", "emsworker", "--help") == user.run("ems", "--help")
    for name in ("status", "url", "env"):
        assert user.run("ems", "local", name)
    user.run("ems", "check")
