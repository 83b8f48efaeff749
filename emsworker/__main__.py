"""The entry of the ``ems`` command, and of ``python -m emsworker``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import IO

_LONG_RUNNING = ("worker", "beat")
_TAKE_A_VALUE = ("--url", "--redis-url")


def main() -> None:
    """Run the command of the command line; a long-running one can be stopped by a signal from here on."""
    _open_standard_streams()
    try:
        if _command(sys.argv[1:]) in _LONG_RUNNING:
            from emsworker.core.process.signals import leave_at_once

            leave_at_once()
        import_module("emsworker.cli.main").main()
    except KeyboardInterrupt:  # during the imports; a command ends with the same words
        print("\nAborted!", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:  # not even an error can be told; Python would try once more, and end with 120
        sys.stderr = _nowhere("w")
        sys.exit(1)


def _open_standard_streams() -> None:
    """Replace closed standard streams (``ems ... >&-``): they are None, and a socket could get their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, _nowhere(mode))


def _nowhere(mode: str) -> IO[str]:
    return os.fdopen(os.open(os.devnull, os.O_RDWR), mode)


def _command(arguments: Sequence[str]) -> str:
    before = ""
    for argument in arguments:
        if not argument.startswith("-") and before not in _TAKE_A_VALUE:
            return argument
        before = argument
    return ""


if __name__ == "__main__":
    main()
