"""Fixtures for users' own tests: a real stream of their own, embedded in the test run.

``ems_stream`` is a new, migrated database on a private server that is started once per session; ``ems_app`` is an app
on it. Nothing is imported or started until a test requests it.
"""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from emsworker import Ems
    from emsworker.local.database import LocalDatabase

T = TypeVar("T")
_START_S = 60.0
_STOP_S = 60.0


@dataclass(frozen=True)
class EmsStream:
    """A stream for one test.

    Attributes:
        url: its address.
        folder: for the logs of its workers.
    """

    url: str
    folder: Path

    def app(self, name: str = "test", **settings: Any) -> Ems:
        """Create an app on this stream."""
        from emsworker import Ems

        return Ems(name, url=self.url, **settings)

    @contextlib.contextmanager
    def worker(self, app: str, *, threads: int = 1) -> Iterator[subprocess.Popen[bytes]]:
        """Run ``ems worker -A app`` on this stream, ready when the block begins and stopped at its end.

        Args:
            app: ``module`` or ``module:name``; it must be importable from the folder where pytest runs.

        Raises:
            AssertionError: it does not start, or does not end with exit code 0.
        """
        log = self.folder / "worker.log"
        name = f"worker-{secrets.token_hex(4)}"
        options = ["-A", app, "--processes", "1", "--threads", str(threads), "--name", name]
        with log.open("ab") as output:
            command = [sys.executable, "-m", "emsworker", "--url", self.url, "worker", *options]
            process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            wait_until(lambda: self._is_ready(process, name, log), _START_S, f"{app} has started; see {log}")
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        assert process.returncode == 0, f"the worker ended with {process.returncode}:\n{log.read_text()}"

    def _is_ready(self, process: subprocess.Popen[bytes], name: str, log: Path) -> bool:
        from emsworker.extending.administration import Monitoring
        from emsworker.extending.database import Database

        assert process.poll() is None, f"the worker ended with {process.returncode}:\n{log.read_text()}"
        return any(view.row.name == name for view in Monitoring(Database(self.url)).clients())


def wait_until(condition: Callable[[], T], timeout_s: float = 15.0, what: str = "it") -> T:
    """Poll until ``condition`` is true and return what it returned.

    Raises:
        AssertionError: the condition is not true in time.
    """
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.02)
    return result


@pytest.fixture(scope="session")
def ems_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalDatabase]:
    """A private MySQL or MariaDB server for this session; the test is skipped if none is installed."""
    from emsworker.local.database import LocalDatabase
    from emsworker.local.errors import ServerMissing

    server = LocalDatabase(tmp_path_factory.mktemp("ems-server"))
    try:
        server.start(_START_S)
    except ServerMissing as error:
        pytest.skip(str(error))
    yield server
    server.kill()


@pytest.fixture
def ems_stream(ems_server: LocalDatabase, tmp_path: Path) -> Iterator[EmsStream]:
    """A new, empty stream on a real server, dropped after the test."""
    from emsworker.extending.database import Database, create_database, drop_database, migrate
    from emsworker.extending.declaration import extensions

    name = f"ems_{secrets.token_hex(6)}"
    admin = Database(ems_server.admin_url)
    admin.call(lambda session: create_database(session, name))
    url = urlsplit(ems_server.url)._replace(path=f"/{name}").geturl()
    with Database(url).session() as session:
        migrate(session, extensions().values())
    yield EmsStream(url, tmp_path)
    admin.call(lambda session: drop_database(session, name))
    admin.thread_session().close()


@pytest.fixture
def ems_app(ems_stream: EmsStream) -> Iterator[Ems]:
    """An app on a stream of its own."""
    app = ems_stream.app()
    yield app
    app.close()
