"""The entry of the ``ems`` command, and of ``python -m emsworker``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

_LONG_RUNNING = ("worker", "beat")
_TAKE_A_VALUE = ("--url", "--redis-url")


def main() -> None:
    """Run the command of the command line; a long-running one can be stopped by a signal from here on."""
    if _command(sys.argv[1:]) in _LONG_RUNNING:
        from emsworker.core.process.signals import leave_at_once

        leave_at_once()
    import_module("emsworker.cli.main").main()


def _command(arguments: Sequence[str]) -> str:
    before = ""
    for argument in arguments:
        if not argument.startswith("-") and before not in _TAKE_A_VALUE:
            return argument
        before = argument
    return ""


if __name__ == "__main__":
    main()
