"""Starts real workers and beats as processes of their own; ``_command`` is the one place that knows how."""

import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import emsworker
from tests.support.looker import Looker
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
LIBRARY = Path(emsworker.__file__).parent  # in the checkout, or where a wheel was installed
_START_S = 60.0
# Short spans, so that the tests are quick; a test may override each of them.
QUICK = {
    "lease_s": 2,
    "renew_s": 0.5,
    "lease_margin_s": 0.5,
    "beat_s": 0.2,
    "beat_lease_s": 1.5,
    "ladder": "300ms",
    "max_attempts": 4,
    "jitter": 0,
    "stop_timeout_s": 20,
    "connect_timeout_s": 3,
}


def _command(what: str, name: str, options: Mapping[str, Any]) -> list[str]:
    command = [sys.executable, "-m", "emsworker", what]
    if what == "beat":
        return command + (["--http", str(options["http"])] if "http" in options else [])
    command += ["-A", options["app"], "-n", name]
    command += ["-p", str(options.get("processes", 1)), "-t", str(options.get("threads", 1))]
    for option, names in (
        ("-Q", options.get("topics", ())),
        ("--groups", options.get("groups", ())),
        ("--tags", options.get("tags", ())),
    ):
        command += [option, ",".join(names)] if names else []
    for option in ("max_tasks_per_child", "max_memory_per_child", "http", "log_format"):
        command += [f"--{option.replace('_', '-')}", str(options[option])] if option in options else []
    return command if options.get("beat", True) else [*command, "--no-beat"]


class Program:
    """A worker or a beat in a process of its own.

    Args:
        what: ``worker`` or ``beat``.
        looker: looks into the database.
        log: the file that its output is appended to.
        settings: over those of ``QUICK``.
        options: of the command: app, processes, threads, topics, groups, beat, name, max_tasks_per_child,
            max_memory_per_child, http, log_format; environ: more variables; root: the folder whose code is run.
    """

    def __init__(self, what: str, looker: Looker, log: Path, settings: Mapping[str, Any], **options: Any) -> None:
        self._looker = looker
        self.log = log
        self.name = options.get("name") or f"{what}-{secrets.token_hex(4)}"
        self.clients = options.get("processes", 1) * options.get("threads", 1)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("EMS_")}
        environment |= {
            f"EMS_{key.upper()}": str(value) for key, value in {"url": looker.url, **QUICK, **settings}.items()
        }
        environment |= {"EMS_TEST_RECORD": str(log.parent)} | options.get("environ", {})
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                _command(what, self.name, options),
                cwd=options.get("root", ROOT),
                env=environment,
                stdout=output,
                stderr=output,
            )

    @property
    def pid(self) -> int:
        """Of the supervisor, or the beat."""
        return self.process.pid

    def children(self) -> list[int]:
        """The process ids of the children that have a client row, by their ids."""
        return sorted({int(client.split("-")[1]) for client in self.client_ids()})

    def client_ids(self) -> list[str]:
        """The client ids of this worker with a good lease."""
        statement = "SELECT client_id FROM ems_client WHERE name = %s AND expires_at > UTC_TIMESTAMP(6)"
        return [row[0] for row in self._looker.rows(statement, self.name)]

    def wait_ready(self) -> "Program":
        """Wait until every thread of the worker is registered."""

        def ready() -> bool:
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.text()}"
            return len(self.client_ids()) == self.clients

        until(ready, _START_S, f"{self.name} is ready")
        return self

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the supervisor or beat."""
        self.process.send_signal(number)

    def wait(self, timeout_s: float = 30) -> int:
        """Wait for its end and return the exit code."""
        until(lambda: self.process.poll() is not None, timeout_s, f"{self.name} has ended")
        return self.process.wait()

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.send(signal.SIGTERM)
        return self.wait()

    def kill_all(self) -> None:
        """Kill -9 of the supervisor and of all its children at once."""
        pids = [self.pid, *_children_of(self.pid)]
        for pid in pids:
            kill(pid, signal.SIGKILL)
        self.process.wait()

    @property
    def http(self) -> str:
        """The address of its probes."""
        found = until(
            lambda: re.search(r"probes and metrics at (http://[\w.:]+)", self.text()), _START_S, f"{self.name} listens"
        )
        return found[1]

    def text(self) -> str:
        """What the log holds."""
        return self.log.read_text(errors="replace")


def kill(pid: int, number: signal.Signals) -> None:
    """Signal a process; one that is gone is no error."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    try:
        texts = [(task / "children").read_text() for task in tasks.iterdir()]
    except OSError:
        return []
    return [int(child) for text in texts for child in text.split()]


def children_of(pid: int) -> list[int]:
    """The process ids of a process's children."""
    return _children_of(pid)
