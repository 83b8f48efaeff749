"""A Celery project in processes of its own: workers, programs that send, and a record of what ran."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.celery.brokers import Broker
from tests.support.servers import connect
from tests.support.waiting import until
from tests.support.worker import ROOT, children_of, kill

START_S, STOP_S = 60.0, 60.0
APP = "tests.celery.projects.tasks"


class Worker:
    """`celery worker` in a session of its own.

    Args:
        project: whose.
        options: of the command.
        environ: more variables.
    """

    def __init__(self, project: Project, options: Sequence[str], environ: dict[str, str]) -> None:
        self.name = f"w{secrets.token_hex(4)}@test"
        self.log = project.folder / f"{self.name}.log"
        command = [sys.executable, "-m", "celery", "-A", APP, "worker", "-n", self.name, "-l", "INFO", *options]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=project.environ | environ, stdout=output, stderr=output, start_new_session=True
            )

    @property
    def text(self) -> str:
        """What the log holds."""
        return self.log.read_text(errors="replace")

    def wait_ready(self) -> Worker:
        """Wait until it consumes."""

        def ready() -> bool:
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.text[-3000:]}"
            return " ready." in self.text

        until(ready, START_S, f"{self.name} is ready")
        return self

    def processes(self) -> list[int]:
        """Its own process id and those of its children."""
        return [self.process.pid, *children_of(self.process.pid)]

    def kill(self) -> None:
        """Kill -9 of all its processes at once, as when a machine is lost."""
        for pid in self.processes():
            kill(pid, signal.SIGKILL)
        self.process.wait()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all its processes."""
        for pid in self.processes():
            kill(pid, number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send its main process a signal to stop; returns the exit code."""
        self.process.send_signal(number)
        return self.wait_gone()

    def wait_gone(self) -> int:
        """Wait until its main process has ended; returns the exit code."""
        until(lambda: self.process.poll() is not None, STOP_S, f"{self.name} has ended:\n{self.text[-2000:]}")
        return self.process.returncode


class Project:
    """A Celery project.

    Args:
        broker: where it sends.
        folder: for its record and the logs.
        options: of the transport, by name.
    """

    def __init__(self, broker: Broker, folder: Path, options: dict[str, float] | None = None) -> None:
        self.broker, self.folder = broker, folder
        self.record = folder / "record"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("EMS_")}
        self.environ = kept | {
            "PROJECT_BROKER": broker.url,
            "PROJECT_BACKEND": broker.backend,
            "PROJECT_RECORD": str(self.record),
            "PROJECT_OPTIONS": json.dumps(options or {}),
            "PYTHONPATH": str(ROOT),
        }
        self._stack = ExitStack()

    def __enter__(self) -> Project:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def worker(self, *options: str, environ: dict[str, str] | None = None) -> Worker:
        """Start a worker; with the project it ends, too."""
        worker = Worker(self, options or ("-c", "2"), environ or {})
        self._stack.callback(self._end, worker)
        return worker

    def workers(self, count: int, *options: str) -> list[Worker]:
        """Start several workers, and wait until they consume."""
        workers = [self.worker(*options) for _ in range(count)]
        return [worker.wait_ready() for worker in workers]

    @staticmethod
    def _end(worker: Worker) -> None:
        worker.send(signal.SIGCONT)
        worker.kill()

    def program(self, text: str, *arguments: object) -> subprocess.Popen[str]:
        """Start a program that has imported the tasks of the project, as ``from ... import *`` does."""
        code = f"import sys\nfrom {APP} import *\n{text}"
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            cwd=ROOT,
            env=self.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._stack.callback(process.kill)
        return process

    def run(self, text: str, *arguments: object, timeout_s: float = 120) -> str:
        """Run a program to its end; returns what it printed."""
        out, err = (process := self.program(text, *arguments)).communicate(timeout=timeout_s)
        assert process.returncode == 0, err
        return out

    def celery(self, *arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run ``celery -A project ...``."""
        return subprocess.run(
            [sys.executable, "-m", "celery", "-A", APP, *arguments],
            cwd=ROOT,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def rows(self, sql: str, *arguments: object) -> list[tuple[Any, ...]]:
        """What is in the database of EMS."""
        with (
            connect(self.broker.url.removeprefix("ems+"), autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(sql, arguments)
            return list(cursor.fetchall())

    # -- what ran -----------------------------------------------------------------------------------------------

    def lines(self) -> Iterator[list[str]]:
        """The record's lines, in words."""
        text = self.record.read_text() if self.record.exists() else ""
        return (line.split() for line in text.splitlines())

    def count(self, what: str) -> Counter[int]:
        """How often each number has a line that begins with a word."""
        return Counter(int(words[1]) for words in self.lines() if words[0] == what)

    def times(self, what: str) -> dict[int, float]:
        """When each number's first such line was written."""
        found: dict[int, float] = {}
        for words in self.lines():
            if words[0] == what:
                found.setdefault(int(words[1]), float(words[2]))
        return found

    def wait_ended(self, count: int, timeout_s: float = 120) -> None:
        """Wait until so many different tasks have ended."""
        until(lambda: len(self.count("ended")) >= count, timeout_s, f"{count} tasks have ended", poll_s=0.1)


def publish(project: Project, count: int, *, seconds: float = 0.0, options: dict[str, Any] | None = None) -> None:
    """Send tasks 0, 1, 2 ... in a program of its own."""
    project.run(
        "for number in range(int(sys.argv[1])): work.apply_async((number, float(sys.argv[2])), **eval(sys.argv[3]))",
        count,
        seconds,
        repr(options or {}),
    )
