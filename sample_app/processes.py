"""Runs the command ``ems`` as users do: real processes, real signals."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_HOME = Path(__file__).resolve().parent.parent  # where `sample_app` can be imported


class Process:
    """One command in a process group of its own, with a log file.

    Args:
        name: of the worker and of its log.
        arguments: of ``ems``.
        environment: all of it.
        folder: where the log goes.
    """

    def __init__(self, name: str, arguments: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self.log_file = folder / f"{name}.log"
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "emsworker", *arguments],
                cwd=_HOME,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def kill_group(self) -> None:
        """``kill -9`` the command and all that it started, at once."""
        with contextlib.suppress(ProcessLookupError):  # all of it has ended
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def terminate(self) -> None:
        """Send SIGTERM to the command, and only to it: its children are its own business."""
        self._process.terminate()

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit code, or None if it still runs after so many seconds."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def last_words(self, lines: int = 15) -> str:
        """The end of its log."""
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])


def start_worker(
    name: str, environment: Mapping[str, str], folder: Path, processes: int = 1, threads: int = 4
) -> Process:
    """Start ``ems worker`` for all that the sample has handlers for."""
    options = ["--processes", str(processes), "--threads", str(threads), "--name", name, "--log-level", "warning"]
    return Process(name, ["worker", "-A", "sample_app", *options], environment, folder)


def start_beat(environment: Mapping[str, str], folder: Path) -> Process:
    """Start ``ems beat``."""
    return Process("beat", ["beat", "--log-level", "warning"], environment, folder)


def start_dashboard(environment: Mapping[str, str], folder: Path) -> Process:
    """Start ``ems web`` on a free port, for everybody on this machine to look and to act."""
    others = [word for word in environment["EMS_SERVERS"].split() if "://" in word]
    both = {**environment, "EMS_WEB_OPERATOR_URL": " ".join([environment["EMS_URL"], *others])}
    return Process("web", ["web", "--port", "0", "--access", "operator"], both, folder)
