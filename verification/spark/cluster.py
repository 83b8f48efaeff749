"""A real standalone cluster on this machine: a master and two workers, from the pip package."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from emsworker.local.ports import free_port
from tests.spark.conftest import JAVA, ROOT, spark_environment
from tests.support.streams import wait_until

_PATIENCE_S = 240.0
_MASTER, _WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"


@dataclass
class Cluster:
    """A running cluster; ``workers`` are its two process ids."""

    url: str
    workers: list[int]

    def executors(self) -> list[int]:
        """The executors that the workers have started."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent in self.workers and b"CoarseGrainedExecutorBackend" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        return found


@contextlib.contextmanager
def standalone(folder: Path, profiles: Path) -> Iterator[Cluster]:
    """Start one, and stop it with all that it has started."""
    import pyspark

    launcher = Path(pyspark.__path__[0]) / "bin" / "spark-class"
    port = free_port()
    environment = {
        **os.environ,
        **spark_environment(),
        "EMS_PROFILES": str(profiles),
        "SPARK_DAEMON_JAVA_OPTS": f"-Dspark.master.rest.enabled=false {JAVA}",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
    }
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, host: str, *arguments: str) -> Path:
        log = folder / f"{name}.log"
        with log.open("wb") as file:
            command = [str(launcher), *arguments, "--host", host, "--webui-port", "0"]
            own = environment | {"SPARK_LOCAL_IP": host}
            started.append(
                subprocess.Popen(command, cwd=ROOT, env=own, stdout=file, stderr=file, start_new_session=True)
            )
        return log

    url = f"spark://127.0.0.1:{port}"
    try:
        log = start("master", "127.0.0.1", _MASTER, "--port", str(port))
        wait_until(lambda: "New state: ALIVE" in log.read_text(), _PATIENCE_S, "a master")
        # Two hosts: a speculative task never runs on the host of the task that it is to overtake.
        resources = (_WORKER, "--cores", "1", "--memory", "1g")
        logs = [start(f"worker-{n}", f"127.0.0.{n}", *resources, url) for n in (2, 3)]
        for one in logs:
            wait_until(lambda one=one: "Successfully registered" in one.read_text(), _PATIENCE_S, "a worker")  # type: ignore[misc]
        yield Cluster(url, [process.pid for process in started[1:]])
    finally:
        for process in reversed(started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
