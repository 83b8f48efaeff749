"""Private RabbitMQ and PostgreSQL servers for one run: on 127.0.0.1, on free ports, in folders of their own."""

from __future__ import annotations

import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from emsworker.local import ServerFailed, ServerMissing
from emsworker.local.files import tail
from emsworker.local.ports import free_port

_START_S, _STOP_S = 60.0, 30.0


class _Process:
    """A server program in a session of its own, so that whatever it starts ends with it."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log: Path, **options: Any) -> None:
        self._log, self._program = log, argv[0]
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                argv,
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", **env},
                cwd=log.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                **options,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    def wait_for(self, answers: Callable[[], bool]) -> None:
        """Wait until it answers.

        Raises:
            ServerFailed: it ended, or takes longer than a minute.
        """
        until = time.monotonic() + _START_S
        while not answers():
            if self._popen.poll() is not None or time.monotonic() > until:
                raise ServerFailed(f"{self._program} did not become ready:\n{tail(self._log)}")
            time.sleep(0.1)

    def stop(self, number: signal.Signals) -> None:
        """Send a signal to its session, wait, and make sure."""
        for sent in (number, signal.SIGKILL):
            try:
                os.killpg(self._popen.pid, sent)
                self._popen.wait(_STOP_S)
            except ProcessLookupError:
                self._popen.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                continue


class PostgreSQL:
    """A cluster with the durability of its defaults: each commit is on disk when it returns."""

    package = "postgresql"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._password = secrets.token_hex(16)
        self._process: _Process | None = None
        self._bin = self.find()

    @staticmethod
    def find() -> Path:
        """The folder of its programs.

        Raises:
            ServerMissing: it is not installed.
        """
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
        program = found[-1] if found else shutil.which("initdb")
        if program is None:
            raise ServerMissing("no PostgreSQL server found; Debian: apt-get install postgresql")
        return Path(program).parent

    @property
    def version(self) -> str:
        """Of the program."""
        line = subprocess.run([self._bin / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
        return line.split()[2]

    def start(self) -> None:
        """Create the cluster and start it; as another user when we are root, whom PostgreSQL refuses."""
        self._folder.mkdir(parents=True)
        password_file = self._folder / "password"
        password_file.write_text(self._password)
        options: dict[str, Any] = {}
        if os.geteuid() == 0:
            owner = pwd.getpwnam("postgres")
            options = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
            for path in (self._folder, password_file):
                os.chown(path, owner.pw_uid, owner.pw_gid)
            self._open_the_way(self._folder)
        data = self._folder / "data"
        command: list[str | Path] = [
            self._bin / "initdb",
            "-D",
            data,
            "-U",
            "ems",
            "-A",
            "scram-sha-256",
            "--pwfile",
            password_file,
        ]
        done = subprocess.run([*command, "-E", "UTF8", "--no-locale"], capture_output=True, text=True, **options)
        if done.returncode != 0:
            raise ServerFailed(f"initdb failed: {done.stderr}")
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "shared_buffers": "256MB",
            "max_connections": "300",
            "fsync": "on",
            "synchronous_commit": "on",
        }
        argv = [str(self._bin / "postgres"), "-D", str(data), "-p", str(self._port)]
        argv += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._process = _Process(argv, {}, self._folder / "server.log", **options)
        self._process.wait_for(lambda: self._run("SELECT 1", check=False) == 0)

    @staticmethod
    def _open_the_way(folder: Path) -> None:
        """The temporary folders above it let another user pass through, and no more."""
        for parent in folder.parents:
            if parent.stat().st_mode & 0o077 == 0:
                parent.chmod(0o711)

    def _run(self, statement: str, *, check: bool = True) -> int:
        argv: list[str | Path] = [
            self._bin / "psql",
            "-h",
            "127.0.0.1",
            "-p",
            str(self._port),
            "-U",
            "ems",
            "-d",
            "postgres",
            "-Xqc",
        ]
        env = {"PGPASSWORD": self._password, "LC_ALL": "C.UTF-8", "PATH": os.environ.get("PATH", os.defpath)}
        done = subprocess.run([*argv, statement], capture_output=True, text=True, env=env)
        if check and done.returncode != 0:
            raise ServerFailed(f"{statement}: {done.stderr}")
        return done.returncode

    def fresh(self) -> str:
        """The address of a new database."""
        name = f"bench_{secrets.token_hex(4)}"
        self._run(f"CREATE DATABASE {name}")
        return f"postgresql://ems:{self._password}@127.0.0.1:{self._port}/{name}"

    def stop(self) -> None:
        """Shut down fast."""
        if self._process is not None:
            self._process.stop(signal.SIGINT)


class RabbitMQ:
    """A node of its own name, with its own port mapper, without plugins."""

    package = "rabbitmq-server"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port, self._mapper_port, self._peer_port = free_port(), free_port(), free_port()
        self._password = secrets.token_hex(16)
        self._process: _Process | None = None
        self._mapper: _Process | None = None
        self._script = self.find()

    @staticmethod
    def find() -> Path:
        """The script behind the command of the package, which would become another user.

        Raises:
            ServerMissing: it is not installed.
        """
        script = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
        if not script.exists():
            raise ServerMissing("no RabbitMQ server found; Debian: apt-get install rabbitmq-server")
        return script

    @property
    def version(self) -> str:
        """Of the package's library."""
        found = re.search(
            r"rabbitmq_server-([\d.]+)",
            " ".join(map(str, Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))),
        )
        return found[1] if found else "unknown"

    def start(self) -> None:
        """Start the port mapper and the node, and wait until it takes connections."""
        self._folder.mkdir(parents=True)
        config = self._folder / "rabbitmq.conf"
        config.write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self._port}\n"
            f"default_user = ems\ndefault_pass = {self._password}\n"
            "loopback_users = none\ndisk_free_limit.absolute = 100MB\n"
        )
        (self._folder / "enabled_plugins").write_text("[].\n")
        mapper = {"ERL_EPMD_PORT": str(self._mapper_port), "ERL_EPMD_ADDRESS": "127.0.0.1"}
        argv = ["epmd", "-port", str(self._mapper_port), "-address", "127.0.0.1"]
        self._mapper = _Process(argv, mapper, self._folder / "epmd.log")
        self._mapper.wait_for(lambda: self._listens(self._mapper_port))
        env = mapper | {
            "HOME": str(self._folder),  # the node's secret cookie
            "RABBITMQ_NODENAME": f"ems-{secrets.token_hex(4)}@localhost",
            "RABBITMQ_DIST_PORT": str(self._peer_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_CONF_ENV_FILE": str(self._folder / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self._folder / "data"),
            "RABBITMQ_LOG_BASE": str(self._folder / "log"),
            "RABBITMQ_PID_FILE": str(self._folder / "pid"),
        }
        self._process = _Process([str(self._script)], env, self._folder / "server.log")
        self._process.wait_for(lambda: self._listens(self._port))

    @staticmethod
    def _listens(port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    @property
    def pid(self) -> int:
        """The process id of the node, which runs in the place of its script."""
        if self._process is None:
            raise ServerFailed("RabbitMQ has not been started")
        return self._process.pid

    @property
    def url(self) -> str:
        """The address."""
        return f"amqp://ems:{self._password}@127.0.0.1:{self._port}//"

    def stop(self) -> None:
        """Stop the node, then the port mapper."""
        for process in (self._process, self._mapper):
            if process is not None:
                process.stop(signal.SIGTERM)
