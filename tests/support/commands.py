"""Running ``ems`` as users do: in a process of its own."""

import atexit
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.machine import machine_s
from tests.support.worker import ROOT

_DEADLINE_S = 60


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without any setting of EMS, and with these changes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EMS_")}
    return {**kept, "EMS_LOCAL_DIR": "/nonexistent/ems", **changes}


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def errors(self) -> list[str]:
        """The lines that tell of an error."""
        return [line for line in self.err.splitlines() if line.startswith("Error: ")]


# They come to their end soon, start nothing, and nobody looks at their processes: one that is ready will do.
_LOOKING = frozenset(
    [
        "cancel",
        "check",
        "clients",
        "dead",
        "flows",
        "grants",
        "groups",
        "messages",
        "migrate",
        "readers",
        "schedules",
        "send",
        "top",
        "topics",
        "trace",
        "alarms",
    ]
)


@cache
def _ready_processes() -> str:
    """The address of what :mod:`tests.support.ready` serves; it ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="ems-ready-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    address = str(folder / "socket")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.ready", address],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment({}),
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    return address


def _at_once(arguments: Sequence[str], environ: Mapping[str, str], folder: Path, stdin: str) -> Done:
    with tempfile.TemporaryDirectory(prefix="ems-done-") as name, socket.socket(socket.AF_UNIX) as connection:
        files = {which: Path(name) / which for which in ("in", "out", "err")}
        files["in"].write_text(stdin)
        wanted: dict[str, Any] = {which: str(path) for which, path in files.items()}
        wanted |= {"arguments": list(arguments), "environ": dict(environ), "folder": str(folder)}
        connection.settimeout(_DEADLINE_S)
        connection.connect(_ready_processes())
        with connection.makefile("rw") as stream:
            stream.write(json.dumps(wanted) + "\n")
            stream.flush()
            code = int(stream.readline())
        return Done(code, files["out"].read_text(), files["err"].read_text())


@dataclass(frozen=True)
class Ems:
    """The ``ems`` command with an environment and a folder to run it in."""

    environ: Mapping[str, str]
    folder: Path

    def __call__(self, *arguments: str, stdin: str = "", **changes: str) -> Done:
        """Run a command to its end; further settings are given in lower case, without EMS_."""
        environ = environment({**self.environ, **{f"EMS_{name.upper()}": value for name, value in changes.items()}})
        if arguments[:1] and arguments[0] in _LOOKING and not any("://" in argument for argument in arguments):
            return _at_once(arguments, environ, self.folder, stdin)
        command = [sys.executable, "-m", "emsworker", *arguments]
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, env=environ, cwd=self.folder, timeout=_DEADLINE_S
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def python(self, script: str) -> None:
        """Run a Python file to its end."""
        command = [sys.executable, script]
        subprocess.run(command, env=environment(self.environ), cwd=self.folder, timeout=_DEADLINE_S, check=True)

    def ok(self, *arguments: str, **options: Any) -> Done:
        """Run a command that must succeed."""
        done = self(*arguments, **options)
        assert done.code == 0, done
        return done

    def write(self, name: str, text: str) -> Path:
        """Write a source file into the folder, as a whole."""
        path = self.folder / name
        partial = path.with_suffix(".partial")
        partial.write_text(textwrap.dedent(text))
        return partial.replace(path)

    @contextmanager
    def running(self, *arguments: str) -> Iterator["Running"]:
        """Run a command in the background; it is killed at the end if it still runs."""
        out, err = self.folder / "out.txt", self.folder / "err.txt"
        with out.open("w") as out_file, err.open("w") as err_file:
            process = subprocess.Popen(
                [sys.executable, "-m", "emsworker", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out_file,
                stderr=err_file,
                env=environment({**self.environ, "PYTHONUNBUFFERED": "1"}),
                cwd=self.folder,
            )
            try:
                yield Running(process, out, err)
            finally:
                if process.poll() is None:
                    process.kill()  # its children see the pipe close
                process.wait()


@dataclass(frozen=True)
class Running:
    """A command in the background."""

    process: "subprocess.Popen[bytes]"
    out: Path
    err: Path

    def wait_ready(self, times: int = 1) -> None:
        """Wait until it has said so often that it is ready."""
        wait_for(lambda: self.out.read_text().count("Ready: ") >= times or self.process.poll() is not None, self.tell)
        assert self.process.poll() is None, self.tell()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(_DEADLINE_S)

    def tell(self) -> str:
        """What it has said."""
        return f"{self.out.read_text()}\n{self.err.read_text()}"


def wait_for(condition: Callable[[], Any], tell: Callable[[], Any] = lambda: "") -> Any:
    """Poll until a condition holds, and return its value."""
    deadline = machine_s() + _DEADLINE_S
    while not (value := condition()):
        assert machine_s() < deadline, f"waited {_DEADLINE_S} s in vain; {tell()}"
        time.sleep(0.02)
    return value
