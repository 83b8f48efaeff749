"""Private MariaDB or MySQL server with durable commits."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from emsworker.extending.processes import lazy
from emsworker.local.binaries import clean_environment
from emsworker.local.engines import Engine, Flavor, find_engine
from emsworker.local.errors import ServerFailed
from emsworker.local.files import ServerState, plain_path, tail, write_private
from emsworker.local.server import Server

_DEFAULTS: Mapping[str, str] = {
    "bind-address": "127.0.0.1",
    "character-set-server": "utf8mb4",
    "innodb-buffer-pool-size": "256M",
    "innodb-flush-log-at-trx-commit": "1",
    "max-allowed-packet": "64M",
    "max-connections": "500",
    "performance-schema": "OFF",
    "skip-name-resolve": "ON",
}
_BINLOG_DEFAULTS: Mapping[str, str] = {"sync-binlog": "1", "binlog-format": "ROW", "server-id": "1"}
_CONNECT_TIMEOUT_S = 2


class LocalDatabase(Server):
    """Database server with full durability: each commit is on disk when it returns.

    It has the user `ems`, who owns the database `ems` and may create databases named `ems_...`, and the
    administrator `root`; both can connect from this machine only.

    Args:
        folder: the folder of all its files.
        flavor: `mariadb` or `mysql`; None takes the flavor that the folder was made with, or else the installed one.
        port: the TCP port on 127.0.0.1; None keeps the port of the last start, or chooses a free one.
        options: more server options, such as `{"innodb-buffer-pool-size": "1G"}`, which override the defaults.
            The binary log is off unless `log-bin` is among them.
    """

    def __init__(
        self,
        folder: Path | str,
        flavor: Flavor | None = None,
        port: int | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(folder, port)
        self._asked_flavor = flavor
        self._options = {name.replace("_", "-"): value for name, value in (options or {}).items()}

    @property
    def kind(self) -> str:
        """The flavor: `mariadb` or `mysql`."""
        return self.flavor

    @property
    def flavor(self) -> Flavor:
        """The flavor: the requested one, or the one that the folder was made with, or the installed one.

        Raises:
            ServerMissing: no server is installed.
        """
        return self._asked_flavor or self._made_with() or self._engine.flavor

    @property
    def version(self) -> str:
        """The version of the installed program.

        Raises:
            ServerMissing: it is not installed.
        """
        return self._engine.version

    @property
    def url(self) -> str:
        """The URL of the database `ems`, as `mysql://ems:password@127.0.0.1:port/ems`.

        Raises:
            ServerFailed: the server has never been started in this folder.
        """
        state = self._state()
        return f"mysql://ems:{state.password}@127.0.0.1:{state.port}/ems"

    @property
    def admin_url(self) -> str:
        """The URL for the administrator, who has all privileges.

        Raises:
            ServerFailed: the server has never been started in this folder.
        """
        state = self._state()
        return f"mysql://root:{state.admin_password}@127.0.0.1:{state.port}/mysql"

    @property
    def socket(self) -> str:
        """The path of the private Unix socket.

        Raises:
            ServerFailed: the server has never been started in this folder.
        """
        return self._state().socket

    @property
    def password(self) -> str:
        """The password of the user `ems`.

        Raises:
            ServerFailed: the server has never been started in this folder.
        """
        return self._state().password

    @lazy
    def _engine(self) -> Engine:
        return find_engine(self._asked_flavor or self._made_with())

    def _made_with(self) -> Flavor | None:
        state = ServerState.load(self._state_file)
        return cast(Flavor, state.kind) if state else None

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _tmp(self) -> Path:
        return self.folder / "tmp"

    @property
    def _mark(self) -> str:
        return f"--datadir={self._data}"

    def _prepare(self, timeout_s: float) -> None:
        made_with = self._made_with()
        if made_with not in (None, self._engine.flavor):
            raise ServerFailed(f"{self.folder} was made with {made_with}, {self._engine.flavor} cannot use it")
        self._tmp.mkdir(mode=0o700, exist_ok=True)
        if not self._data.is_dir():
            self._initialize(timeout_s)

    def _initialize(self, timeout_s: float) -> None:
        # Filled under another name, so that a crash leaves nothing that looks like a complete data folder.
        partial = self.folder / "data.partial"
        shutil.rmtree(partial, ignore_errors=True)
        with plain_path(self.folder) as folder, self._log_file.open("ab") as log:
            try:
                subprocess.run(
                    [*self._engine.initialize_command(folder / partial.name), *self._lasting_options()],
                    cwd=self.folder,
                    # A starting MariaDB deletes the temporary tables of other servers that share its folder.
                    env={**clean_environment(), "TMPDIR": str(folder / self._tmp.name)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    timeout=max(timeout_s, 1),
                    check=True,
                )
            except (OSError, subprocess.SubprocessError) as error:
                raise ServerFailed(f"{self} cannot be set up: {error}\n{tail(self._log_file)}") from error
        partial.rename(self._data)

    def _command(self, state: ServerState) -> list[str]:
        init_file = self.folder / "accounts.sql"
        write_private(init_file, "".join(f"{statement};\n" for statement in self._account_statements(state)))
        return [
            *self._engine.base_command,
            *self._engine.own_options,
            self._mark,
            f"--port={state.port}",
            f"--socket={state.socket}",
            f"--pid-file={self._pid_file}",
            f"--log-error={self._log_file}",
            f"--tmpdir={self._tmp}",
            f"--init-file={init_file}",
            *self._option_arguments(),
        ]

    def _lasting_options(self) -> Iterator[str]:
        """Yield options that are fixed when the data folder is made."""
        if "lower-case-table-names" in self._options:
            yield f"--lower-case-table-names={self._options['lower-case-table-names']}"

    def _option_arguments(self) -> Iterator[str]:
        binlog = "log-bin" in self._options
        if not binlog:
            yield "--skip-log-bin"
        options = {**_DEFAULTS, **(_BINLOG_DEFAULTS if binlog else {}), **self._options}
        for name, value in options.items():
            yield f"--{name}={value}"

    def _account_statements(self, state: ServerState) -> Iterator[str]:
        """Yield the SQL that the server runs before it accepts connections.

        It runs at every start and is idempotent, so the next start repairs a crash during the first one.
        """
        # A replica must not have transactions of its own.
        yield "SET SESSION sql_log_bin = 0"
        yield from self._engine.clean_up_statements
        yield "CREATE DATABASE IF NOT EXISTS `ems` CHARACTER SET utf8mb4"
        for host in ("localhost", "127.0.0.1"):
            yield from _account(f"'root'@'{host}'", state.admin_password)
            yield f"GRANT ALL PRIVILEGES ON *.* TO 'root'@'{host}' WITH GRANT OPTION"
            yield from _account(f"'ems'@'{host}'", state.password)
            yield f"GRANT ALL PRIVILEGES ON `ems`.* TO 'ems'@'{host}'"
            yield f"GRANT ALL PRIVILEGES ON `ems\\_%`.* TO 'ems'@'{host}'"

    def _answers(self, state: ServerState) -> bool:
        from pymysql import connect
        from pymysql.err import OperationalError

        try:
            connection = connect(
                unix_socket=state.socket,
                user="ems",
                password=state.password,
                database="ems",
                connect_timeout=_CONNECT_TIMEOUT_S,
                ssl_disabled=True,  # PyMySQL would first read all certificates that the system trusts
            )
        except OperationalError:
            return False
        connection.close()
        return True


def _account(name: str, password: str) -> Iterator[str]:
    yield f"CREATE USER IF NOT EXISTS {name} IDENTIFIED BY '{password}'"
    yield f"ALTER USER {name} IDENTIFIED BY '{password}'"
