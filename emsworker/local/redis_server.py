"""Private Redis server, durable to the second."""

import os
import socket
from pathlib import Path

from emsworker.extending.processes import lazy
from emsworker.local.binaries import find_programs, version_line, version_number
from emsworker.local.errors import ServerMissing
from emsworker.local.files import ServerState, write_private
from emsworker.local.server import Server

_MISSING = (
    "no Redis server found. Install one: Debian/Ubuntu `apt-get install redis-server`, "
    "Fedora `dnf install redis` (or valkey), macOS `brew install redis`"
)
_ANSWER_TIMEOUT_S = 2

# set-proc-title is off because the process is recognised by its command line.
_CONFIG = """\
bind 127.0.0.1
port {port}
unixsocket {socket}
unixsocketperm 700
requirepass {password}
dir {folder}
pidfile {pid_file}
logfile {log_file}
appendonly yes
appendfsync everysec
save ""
daemonize no
set-proc-title no
"""


class Redis(Server):
    """Redis (or Valkey) server with an append-only file that is synced every second.

    Args:
        folder: the folder of all its files.
        port: the TCP port on 127.0.0.1; None keeps the port of the last start, or chooses a free one.
    """

    @property
    def kind(self) -> str:
        """Always `redis`."""
        return "redis"

    @property
    def version(self) -> str:
        """The version of the installed program.

        Raises:
            ServerMissing: it is not installed.
        """
        return version_number(version_line([str(self._program)]))

    @property
    def url(self) -> str:
        """The URL, as `redis://:password@127.0.0.1:port/0`.

        Raises:
            ServerFailed: the server has never been started in this folder.
        """
        state = self._state()
        return f"redis://:{state.password}@127.0.0.1:{state.port}/0"

    @lazy
    def _program(self) -> Path:
        for found in find_programs(("redis-server", "valkey-server")):
            return found
        raise ServerMissing(_MISSING)

    @property
    def _config_file(self) -> Path:
        return self.folder / "redis.conf"

    @property
    def _mark(self) -> str:
        return str(self._config_file)

    def _prepare(self, timeout_s: float) -> None:
        (self.folder / "data").mkdir(mode=0o700, exist_ok=True)

    def _command(self, state: ServerState) -> list[str]:
        config = _CONFIG.format(
            port=state.port,
            socket=_quoted(state.socket),
            password=state.password,
            folder=_quoted(self.folder / "data"),
            pid_file=_quoted(self._pid_file),
            log_file=_quoted(self._log_file),
        )
        # The password is in a file, because every user of the machine can read the command line.
        write_private(self._config_file, config)
        return [str(self._program), str(self._config_file)]

    def _answers(self, state: ServerState) -> bool:
        # The protocol in a few lines, so that a local stack needs no Redis client.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ANSWER_TIMEOUT_S)
            try:
                connection.connect(state.socket)
                connection.sendall(f"AUTH {state.password}\r\nPING\r\nQUIT\r\n".encode())
                reply = b"".join(iter(lambda: connection.recv(4096), b""))
            except OSError:
                return False
        return b"+PONG" in reply


def _quoted(path: str | os.PathLike[str]) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
