"""The ``ems`` command on a terminal of its own."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.support.commands import Ems, environment, wait_for

_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[()][A-Z0-9]|[=>])")


class Terminal:
    """What a command shows on a terminal, and the keys that are pressed there."""

    def __init__(self, ours: int, process: "subprocess.Popen[bytes]") -> None:
        self._ours, self.process = ours, process
        self.raw = b""
        self._seen = 0

    def _read(self) -> None:
        while select.select([self._ours], [], [], 0)[0]:
            try:
                more = os.read(self._ours, 65536)
            except OSError:  # nobody has it open any more
                return
            if not more:
                return
            self.raw += more

    @property
    def text(self) -> str:
        """Everything that it has shown since the last key, without escape sequences."""
        self._read()
        return _ESCAPE.sub("", self.raw[self._seen :].decode(errors="replace")).replace("\r", "")

    def press(self, keys: str) -> None:
        self._read()
        self._seen = len(self.raw)
        os.write(self._ours, keys.encode())

    def wait(self, *wanted: str) -> str:
        """Wait until all of these have been shown since the last key."""
        wait_for(lambda: all(one in self.text for one in wanted), lambda: f"{wanted} in {self.text[-3000:]}")
        return self.text

    def end(self) -> int:
        """Wait for its end; returns its exit code."""
        wait_for(lambda: (self._read(), self.process.poll() is not None)[1], lambda: self.text)
        self._read()
        return self.process.wait()

    def mode(self) -> list[Any]:
        """The mode of the terminal."""
        return termios.tcgetattr(self._ours)


@contextmanager
def terminal(
    ems: Ems,
    *arguments: str,
    columns: int = 100,
    lines: int = 30,
    program: Sequence[str] = (sys.executable, "-m", "emsworker"),
    **changes: str,
) -> Iterator[Terminal]:
    """Run a command, or another program, on a terminal of this size; it is killed at the end if it still runs."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    environ = environment({**ems.environ, "TERM": "xterm-256color", **changes})
    for name in {"COLUMNS", "LINES", "NO_COLOR"} - set(changes):
        environ.pop(name, None)
    process = subprocess.Popen(
        [*program, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environ,
        cwd=ems.folder,
        start_new_session=True,
    )
    try:
        yield Terminal(ours, process)
    finally:
        process.kill()
        process.wait()
        os.close(theirs)
        os.close(ours)
