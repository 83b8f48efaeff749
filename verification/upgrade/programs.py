"""The programs around a database that is recorded or upgraded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.looker import Looker
from tests.support.servers import connect
from tests.support.worker import ROOT, Program
from verification.upgrade.app import FIXED
from verification.upgrade.newer import copy_newer

TABLES = (
    "CREATE TABLE effect (id INT PRIMARY KEY AUTO_INCREMENT, what VARCHAR(40) NOT NULL, n INT NOT NULL) ENGINE=InnoDB",
    # What must have happened, once each, when all is done; and what results there are.
    "CREATE TABLE expected (what VARCHAR(40) NOT NULL, n INT NOT NULL, PRIMARY KEY (what, n)) ENGINE=InnoDB",
    "CREATE TABLE result (id VARCHAR(64) PRIMARY KEY, value INT NOT NULL) ENGINE=InnoDB",
)
"""Beside those of EMS."""


@dataclass
class Site:
    """A database and the programs on it.

    Args:
        url: of the database.
        folder: for logs.
    """

    url: str
    folder: Path

    def __post_init__(self) -> None:
        self.looker = Looker(self.url)
        self.programs: list[Program] = []

    def program(self, what: str, root: Path = ROOT, *, fixed: bool = False, **options: Any) -> Program:
        """Start a worker or a beat of the code in a folder."""
        log = self.folder / f"{what}-{len(self.programs)}.log"
        environ = {FIXED: "1"} if fixed else {}
        program = Program(
            what, self.looker, log, {"url": self.url}, app="verification.upgrade.app", threads=12, beat=False,
            root=root, environ=environ, **options,
        )  # fmt: skip
        self.programs.append(program)
        return program

    def celery(self, log: Path, root: Path = ROOT) -> subprocess.Popen[bytes]:
        """Start a Celery worker."""
        command = [sys.executable, "-m", "celery", "-A", "verification.upgrade.celery_app", "worker", "-P", "solo"]
        with log.open("ab") as output:
            return subprocess.Popen(
                [*command, "-l", "INFO"], cwd=root, env=self.environ(), stdout=output, stderr=output
            )

    def environ(self) -> dict[str, str]:
        """The environment of programs."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("EMS_")}
        return kept | {"EMS_URL": self.url}

    def count(self, what: str) -> int:
        """The effects of a kind."""
        return int(self.looker.rows("SELECT COUNT(*) FROM effect WHERE what = %s", what)[0][0])

    def expect(self, what: str, *numbers: int) -> None:
        """Write down what must have happened in the end."""
        with connect(self.url, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.executemany("INSERT INTO expected VALUES (%s, %s)", [(what, n) for n in numbers])

    def close(self) -> None:
        """Kill what still runs."""
        for program in self.programs:
            if program.process.poll() is None:
                program.kill_all()
        self.looker.close()


class Upgrade(Site):
    """A recorded database that is upgraded.

    Args:
        url: of the database.
        folder: for logs, and for the newer code.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.newer = self.folder / "newer"
        self.others: list[subprocess.Popen[Any]] = []

    def prepare(self) -> None:
        """Make the newer code."""
        copy_newer(self.newer)

    def start(self, *command: str, root: Path = ROOT) -> subprocess.Popen[str]:
        """Start a module of the code in a folder."""
        log = (self.folder / f"program-{len(self.others)}.log").open("w")
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=root,
            env=self.environ(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        self.others.append(process)
        return process

    def log(self, process: subprocess.Popen[str]) -> str:
        """What a program has written to standard error."""
        return (self.folder / f"program-{self.others.index(process)}.log").read_text()

    def run(self, *command: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
        """Run a command of EMS of the code in a folder to its end."""
        whole = [sys.executable, "-m", "emsworker", *command]
        return subprocess.run(whole, cwd=root, env=self.environ(), capture_output=True, text=True, timeout=120)

    def step(self, number: int) -> tuple[int, bool] | None:
        """The rows that a step has gone through, and whether it is done; ``None`` if it has not begun."""
        rows = self.looker.rows("SELECT seen_rows, done_at IS NOT NULL FROM ems_migration_step WHERE step = %s", number)
        return (int(rows[0][0]), bool(rows[0][1])) if rows else None

    def close(self) -> None:
        """Kill what still runs."""
        for process in self.others:
            if process.poll() is None:
                process.kill()
            process.wait()
        super().close()


def end_senders(upgrade: Upgrade, senders: Sequence[subprocess.Popen[str]]) -> float:
    """Stop senders, write down what they have sent, and return the seconds that the slowest message took."""
    slowest_s = []
    for sender in senders:
        sender.send_signal(signal.SIGTERM)
        out, _ = sender.communicate(timeout=60)
        assert sender.returncode == 0, upgrade.log(sender)
        told = json.loads(out)
        slowest_s += told["slowest_s"]
        print(f"{told['end'] - told['first']} messages; the slowest took {max(told['slowest_s']) * 1000:.0f} ms")
        upgrade.expect("pay", *range(told["first"], told["end"]))
    return max(slowest_s)
