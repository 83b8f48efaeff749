"""Commands that hand their arguments on to the ``ems`` command."""

from __future__ import annotations

import argparse
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, handle_default_options

from emsworker.extending.errors import EmsError
from emsworker.extending.processes import VARIABLE
from emsworker.integrations.django.backend import EmsBackend, get_backend


class PassingCommand(BaseCommand, ABC):  # type: ignore[misc]
    """A command that becomes ``ems`` with the stream of a backend; Django's own options are taken out before.

    The process is replaced, so that signals, exit codes and the terminal are those of ``ems`` itself.
    """

    requires_system_checks: Sequence[str] = ()

    def add_arguments(self, parser: Any) -> None:
        """Add the arguments, for ``manage.py help`` and ``call_command``."""
        _add_backend(parser)
        parser.add_argument("arguments", nargs="*", help="arguments of the ems command")

    def run_from_argv(self, argv: list[str]) -> None:
        """Run with the arguments of a command line; argparse would refuse those of ``ems``."""
        parser = argparse.ArgumentParser(prog=f"{Path(argv[0]).name} {argv[1]}", add_help=False, allow_abbrev=False)
        parser.add_argument("--settings")
        parser.add_argument("--pythonpath")
        _add_backend(parser)
        given, rest = parser.parse_known_args(argv[2:])
        folders = [given.pythonpath or "", sys.path[0]]  # the last is where manage.py lies
        handle_default_options(given)
        try:
            self._become_ems(given.backend, rest, folders)
        except CommandError as error:
            self.stderr.write(f"Error: {error}")
            sys.exit(error.returncode)

    def handle(self, *args: Any, **given: Any) -> None:
        """Run by ``call_command``."""
        self._become_ems(given["backend"], given["arguments"], [])

    def _become_ems(self, alias: str, arguments: Sequence[str], folders: Sequence[str]) -> NoReturn:
        try:
            backend = get_backend(alias)
            command = [sys.executable, "-m", "emsworker", *self.command_line(backend, arguments)]
            added = self.environment(backend)
        except (EmsError, ImproperlyConfigured) as error:
            raise CommandError(str(error), returncode=2) from None
        path = os.pathsep.join(filter(None, [*folders, os.environ.get("PYTHONPATH")]))
        sys.stdout.flush()
        os.execve(sys.executable, command, {**os.environ, **added, **({"PYTHONPATH": path} if path else {})})

    @abstractmethod
    def command_line(self, backend: EmsBackend, arguments: Sequence[str]) -> list[str]:
        """Return the arguments of ``ems``."""

    def environment(self, backend: EmsBackend) -> Mapping[str, str]:
        """Return the variables that ``ems`` needs besides."""
        return {VARIABLE: backend.address_name}


def _add_backend(parser: Any) -> None:
    parser.add_argument("--backend", default="default", help="name of the backend in TASKS")
