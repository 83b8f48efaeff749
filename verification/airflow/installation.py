"""An installation of Airflow in a folder: its processes and what its metadata say."""

from __future__ import annotations

import os
import secrets
import signal
import sqlite3
import subprocess
from collections import Counter
from contextlib import closing
from pathlib import Path

from emsworker.local.ports import free_port
from tests.support.waiting import until
from tests.support.worker import children_of, kill

_DAGS = Path(__file__).with_name("dags")


class Airflow:
    """Metadata in SQLite, the executor of Celery; its processes end with the block.

    Args:
        python: the interpreter that has Airflow.
        folder: an empty one.
        stream: the URL of the broker and of the results.
    """

    def __init__(self, python: str, folder: Path, stream: str) -> None:
        self._python, self._folder = python, folder
        port = free_port()
        options = {
            "CORE__EXECUTOR": "CeleryExecutor",
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__DAGS_FOLDER": str(_DAGS),
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
            "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/airflow.db",
            "API__PORT": str(port),
            "API__BASE_URL": f"http://127.0.0.1:{port}",
            "API_AUTH__JWT_SECRET": secrets.token_hex(32),
            "CELERY__BROKER_URL": stream,
            "CELERY__RESULT_BACKEND": stream,
            "CELERY__WORKER_CONCURRENCY": "2",
            # A task whose worker was killed is found after ten seconds, and tried again.
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": "2",
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "10",
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EMS_", "AIRFLOW"))}
        self.total_seen = folder / "total"
        self._environ = (
            kept
            | {f"AIRFLOW__{name}": value for name, value in options.items()}
            | {"AIRFLOW_HOME": str(folder), "TOTAL_SEEN": str(self.total_seen)}
        )
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Airflow:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            self.kill(process)

    def run(self, *arguments: str) -> None:
        """Run a command of Airflow to its end.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        command = [self._python, "-m", "airflow", *arguments]
        with (self._folder / "commands.log").open("ab") as log:
            subprocess.run(command, env=self._environ, check=True, timeout=180, stdout=log, stderr=log)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a process of Airflow, in a session of its own."""
        command = [self._python, "-m", "airflow", *arguments]
        with (self._folder / f"{arguments[0]}.log").open("ab") as log:
            process = subprocess.Popen(
                command, env=self._environ, cwd=self._folder, stdout=log, stderr=log, start_new_session=True
            )
        self._processes.append(process)
        return process

    @staticmethod
    def kill(process: subprocess.Popen[bytes]) -> None:
        """Kill -9 of a process and its children, as when a machine is lost."""
        for pid in [process.pid, *children_of(process.pid)]:
            kill(pid, signal.SIGKILL)
        process.wait()

    def logs(self) -> str:
        """The ends of the processes' logs."""
        return "\n".join(f"{path.name}:\n{path.read_text()[-2000:]}" for path in sorted(self._folder.glob("*.log")))

    def wait_known(self, dag: str) -> None:
        """Wait until a DAG has been read."""
        sql = "SELECT 1 FROM serialized_dag WHERE dag_id = ?"
        until(lambda: self._rows(sql, dag), 120, f"DAG {dag} has been read", poll_s=0.25)

    def states(self, run: str) -> Counter[str]:
        """The states of the tasks of a run."""
        return Counter(str(state) for (state,) in self._rows("SELECT state FROM task_instance WHERE run_id = ?", run))

    def wait_done(self, run: str, count: int, timeout_s: float) -> None:
        """Wait until at least so many tasks of a run have succeeded; none may have failed for good."""

        def done() -> bool:
            states = self.states(run)
            assert not states["failed"] and not states["upstream_failed"], f"{states}\n{self.logs()}"
            return states["success"] >= count

        until(done, timeout_s, f"{count} tasks of {run} have succeeded", poll_s=0.25)

    def _rows(self, sql: str, *arguments: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(f"file:{self._folder}/airflow.db?mode=ro", uri=True, timeout=30)) as metadata:
            return list(metadata.execute(sql, arguments))
