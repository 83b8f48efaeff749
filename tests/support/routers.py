"""MySQL Router: one address for the nodes of a cluster."""

import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from emsworker.local import ServerMissing
from emsworker.local.binaries import find_programs, version_line, version_number
from emsworker.local.engines import loader_of
from emsworker.local.ports import free_port
from emsworker.local.process import send, spawn, wait_gone
from tests.support.clusters import Cluster, Node
from tests.support.waiting import until

ROOT_VARIABLE = "EMS_MYSQL_ROUTER_ROOT"
_START_S = 30.0
# A test compares it with that of docs/how-to/cluster.md.
CONFIGURATION = """\
[routing:ems]
bind_address = 127.0.0.1
bind_port = {port}
destinations = {destinations}
routing_strategy = {strategy}
protocol = classic
connect_timeout = 1
max_connect_errors = 4294967295
"""


class MySQLRouter:
    """Installed MySQL Router.

    Args:
        command: the program, with the arguments that must come before any option.
        places: configuration that tells where its own files are.
    """

    def __init__(self, command: Sequence[str], places: str = "") -> None:
        self.command, self.places = tuple(command), places
        self.version = version_number(version_line(self.command))

    @classmethod
    def find(cls) -> Self:
        """Return the one in the folder that EMS_MYSQL_ROUTER_ROOT names, or else the installed one.

        Raises:
            ServerMissing: it is not installed.
            ServerFailed: it cannot be run.
        """
        if root := os.environ.get(ROOT_VARIABLE):
            return cls.in_root(Path(root).resolve())
        for program in find_programs(("mysqlrouter",)):
            return cls([str(program)])
        raise ServerMissing(
            f"no MySQL Router found: Debian (unstable) `apt-get install mysql-router`; or set {ROOT_VARIABLE}"
        )

    @classmethod
    def in_root(cls, root: Path) -> Self:
        """Return the one that was unpacked in a folder, with the libraries that it needs beside it.

        Args:
            root: a folder like `/` (with `usr/bin/mysqlrouter`).

        Raises:
            ServerMissing: there is none in it.
            ServerFailed: it cannot be run.
        """
        program = root / "usr/bin/mysqlrouter"
        if not program.exists():
            raise ServerMissing(f"no usr/bin/mysqlrouter in {root} ({ROOT_VARIABLE}): ./dev mysql-router")
        # Run by a loader, it cannot tell its own place, to which its built-in folder of plugins is relative.
        plugins = f"plugin_folder = {root / 'usr/lib/mysqlrouter/plugin'}\n"
        return cls([*loader_of(root, "usr/lib/mysql-router"), str(program)], plugins)


class Router:
    """A router with a static route to nodes of a cluster.

    Args:
        cluster: whose nodes have their ports.
        strategy: how it chooses among them, for each connection.
        nodes: where it leads to, instead of all.

    Raises:
        ServerMissing: the program is not installed.
    """

    def __init__(self, cluster: Cluster, strategy: str, nodes: Sequence[Node] = ()) -> None:
        program = MySQLRouter.find()
        self._cluster, self.port = cluster, free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="ems-router-"))
        destinations = ",".join(f"127.0.0.1:{node.port}" for node in nodes or cluster.nodes)
        configuration = self.folder / "mysqlrouter.conf"
        configuration.write_text(
            f"[DEFAULT]\n{program.places}runtime_folder = {self.folder}\ndata_folder = {self.folder}\nlogging_folder =\n\n"
            + CONFIGURATION.format(port=self.port, destinations=destinations, strategy=strategy)
        )
        user = ["--user=root"] if os.geteuid() == 0 else []
        self._pid = spawn([*program.command, f"--config={configuration}", *user], self.folder, self.folder / "log")
        try:
            until(self._listens, _START_S, "the router listens")
        except AssertionError:
            self.close()
            raise

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    @property
    def url(self) -> str:
        """Its one address, as clients are told it."""
        first = urlsplit(self._cluster.url)
        return f"mysql://{first.username}:{first.password}@127.0.0.1:{self.port}{first.path}"

    def connections_to(self, node: Node) -> int:
        """How many connections to a node are open, those included that their client has given up."""
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        open_states = ("01", "08")  # established, and closed by the other side alone
        return sum(
            int(remote.rpartition(":")[2], 16) == node.port and state in open_states
            for _, _, remote, state, *_ in lines
        )  # fmt: skip

    def close(self) -> None:
        """Kill it and delete its files."""
        send(self._pid, signal.SIGKILL)
        wait_gone(self._pid, _START_S)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def routed(cluster: Cluster, strategy: str, nodes: Sequence[Node] = ()) -> Iterator[Router]:
    """Start a router, as :class:`Router` takes it; it is killed at the end."""
    router = Router(cluster, strategy, nodes)
    try:
        yield router
    finally:
        router.close()
