"""Base class of private servers: start, readiness, stop."""

import secrets
import shutil
import signal
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import emsworker.local.ports as ports
import emsworker.local.process as process
from emsworker.local.errors import ServerFailed
from emsworker.local.files import ServerState, exclusive, tail

_POLL_S = 0.05
_START_ATTEMPTS = 3
# The kernel takes 107 bytes on Linux and 103 on macOS; servers add suffixes such as ".lock".
_SOCKET_PATH_BYTES = 95


class Server(ABC):
    """Private server: a folder with all its files, and at most one process.

    Args:
        folder: the folder of its data, log, socket and state file; created with mode 0700 if it is missing.
        port: the TCP port on 127.0.0.1; None keeps the port of the last start, or chooses a free one.
    """

    def __init__(self, folder: Path | str, port: int | None = None) -> None:
        self.folder = Path(folder).expanduser().resolve()
        self._asked_port = port
        self._state_file = self.folder / "state.json"
        self._pid_file = self.folder / "server.pid"
        self._log_file = self.folder / "error.log"

    # -- implemented by each kind of server ---------------------------------------------------------------------

    @property
    @abstractmethod
    def kind(self) -> str:
        """The kind of server: `mariadb`, `mysql` or `redis`."""

    @property
    @abstractmethod
    def version(self) -> str:
        """The version of the installed program.

        Raises:
            ServerMissing: it is not installed.
        """

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL, with the password.

        Raises:
            ServerFailed: the server has never been started in this folder.
        """

    @property
    @abstractmethod
    def _mark(self) -> str:
        """Argument of the command line that no other server has."""

    @abstractmethod
    def _prepare(self, timeout_s: float) -> None:
        """Create the data folder, if it does not exist yet."""

    @abstractmethod
    def _command(self, state: ServerState) -> list[str]:
        """Return the command line, and write the files that it names."""

    @abstractmethod
    def _answers(self, state: ServerState) -> bool:
        """Return whether the server accepts requests on its private socket."""

    # -- the process --------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        """The process id of the running server, or None."""
        return next((pid for pid in self._recorded_pids() if process.runs_with(pid, self._mark)), None)

    @property
    def alive(self) -> bool:
        """True if the server's process runs."""
        return self.pid is not None

    @property
    def port(self) -> int:
        """The TCP port on 127.0.0.1.

        Raises:
            ServerFailed: the server has never been started in this folder.
        """
        return self._state().port

    def start(self, timeout_s: float = 60) -> None:
        """Start the server and wait until it answers; do nothing if it already runs.

        Any number of processes and threads may call it at once.

        Args:
            timeout_s: the seconds to wait. A server that needs longer (after a crash, for example) is left running,
                and the next call continues to wait for it.

        Raises:
            ServerMissing: no server program is installed.
            ServerFailed: it ended at once, or does not answer in time.
        """
        deadline = time.monotonic() + timeout_s
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with exclusive(self.folder / "lock", timeout_s):
            for _ in range(_START_ATTEMPTS):
                found_running = self.alive
                if not found_running:
                    self._launch(deadline)
                if self._became_ready(deadline):
                    return
                # A server that was found running may have been shutting down.
                if not (found_running or self._lost_its_port()):
                    break
            raise ServerFailed(f"{self} ended while it started:\n{tail(self._log_file)}")

    def stop(self, timeout_s: float = 30) -> None:
        """Shut the server down cleanly; do nothing if it does not run.

        Raises:
            ServerFailed: it still runs after that time.
        """
        self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would; it recovers at the next start.

        Raises:
            ServerFailed: it still runs after 30 s.
        """
        self._end(signal.SIGKILL, timeout_s=30)

    def __str__(self) -> str:
        """Return the kind and the folder."""
        return f"{self.kind} in {self.folder}"

    # -- steps --------------------------------------------------------------------------------------------------

    def _recorded_pids(self) -> Iterator[int]:
        state = ServerState.load(self._state_file)
        if state and state.pid:
            yield state.pid
        # Written by the server itself: the only trace if we died between starting it and saving the state.
        content = self._pid_file.read_text("ascii", "replace").strip() if self._pid_file.is_file() else ""
        if content.isdecimal():
            yield int(content)

    def _launch(self, deadline: float) -> None:
        self._prepare(deadline - time.monotonic())
        if self._state_file.exists():
            self._remove_socket_folder()
        state = self._next_state()
        self._remove_leftovers(state)
        state.save(self._state_file)
        pid = process.spawn(self._command(state), self.folder, self._log_file)
        replace(state, pid=pid).save(self._state_file)

    def _next_state(self) -> ServerState:
        old = ServerState.load(self._state_file)
        port = self._asked_port or (old.port if old and ports.is_free(old.port) else ports.free_port())
        if old:
            return replace(old, port=port, socket=self._socket_path(), pid=None)
        return ServerState(
            self.kind, port, self._socket_path(), password=secrets.token_hex(16), admin_password=secrets.token_hex(16)
        )

    def _remove_leftovers(self, state: ServerState) -> None:
        # A crash leaves them behind, and the process ids in them may belong to another process by now.
        for leftover in (self._pid_file, Path(state.socket), Path(f"{state.socket}.lock")):
            leftover.unlink(missing_ok=True)

    def _socket_path(self) -> str:
        path = str(self.folder / "server.sock")
        if len(path.encode()) <= _SOCKET_PATH_BYTES:
            return path
        return str(Path(tempfile.mkdtemp(prefix="ems-", dir="/tmp")) / "server.sock")

    def _remove_socket_folder(self) -> None:
        folder = Path(self._state().socket).parent
        if folder != self.folder:
            shutil.rmtree(folder, ignore_errors=True)

    def _state(self) -> ServerState:
        state = ServerState.load(self._state_file)
        if state is None:
            raise ServerFailed(f"{self} has never been started")
        return state

    def _became_ready(self, deadline: float) -> bool:
        state = self._state()
        while self.alive:
            if self._answers(state):
                return True
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self} does not answer yet (pid {self.pid}):\n{tail(self._log_file)}")
            time.sleep(_POLL_S)
        return False

    def _lost_its_port(self) -> bool:
        return self._asked_port is None and not ports.is_free(self._state().port)

    def _end(self, number: signal.Signals, timeout_s: float) -> None:
        if not self.folder.is_dir():
            return
        # The lock prevents a race with a start in another process.
        with exclusive(self.folder / "lock", timeout_s):
            pid = self.pid
            if pid is None:
                return
            process.send(pid, number)
            if not process.wait_gone(pid, timeout_s):
                raise ServerFailed(f"{self} (pid {pid}) still runs {timeout_s:g} s after {number.name}")
            self._remove_socket_folder()
