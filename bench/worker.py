"""Real workers: the ``ems worker`` command in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.stage import NotRight, Stage

PROCESSES, THREADS = 2, 4
STAMPS = "stamps.txt"
_START_S, _STOP_S = 60.0, 30.0


@dataclass(frozen=True)
class Shape:
    """What is started.

    Args:
        topic: the only one that it takes.
        processes, threads: how many, and how many in each.
        app: the module.
    """

    topic: str
    processes: int = PROCESSES
    threads: int = THREADS
    app: str = "bench.app"

    def command(self) -> list[str]:
        """The command line."""
        options = [f"--processes={self.processes}", f"--threads={self.threads}", "--log-level=warning"]
        return [sys.executable, "-m", "emsworker", "worker", "-A", self.app, "-Q", self.topic, *options]


def environment(stage: Stage) -> dict[str, str]:
    """What a worker is told: where its servers are."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("EMS_")}
    plain |= {"EMS_URL": stage.url, "BENCH_STAMPS": str(stage.folder / STAMPS)}
    return plain if stage.redis_url is None else plain | {"EMS_REDIS_URL": stage.redis_url}


@contextmanager
def running(stage: Stage, shape: Shape) -> Iterator[subprocess.Popen[bytes]]:
    """A worker, ready when the block begins and stopped with SIGTERM when it ends.

    Raises:
        NotRight: it did not become ready, or did not end with exit code 0.
    """
    log = stage.folder / "worker.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            shape.command(),
            cwd=Path(__file__).parent.parent,
            env=environment(stage),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            _wait_until_ready(stage, shape, process, log)
            yield process
            process.send_signal(signal.SIGTERM)
            code = process.wait(_STOP_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if code != 0:
        raise NotRight(f"the worker ended with exit code {code}: {_tail(log)}")
    stage.check("client rows after SIGTERM", 0, "SELECT COUNT(*) FROM ems_client")


def _wait_until_ready(stage: Stage, shape: Shape, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _START_S
    while stage.value("SELECT COUNT(*) FROM ems_client") < shape.processes * shape.threads:
        if process.poll() is not None or time.monotonic() > until:
            raise NotRight(f"the worker did not become ready: {_tail(log)}")
        time.sleep(0.05)


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]
