"""Three nodes that are one database: a Group Replication of MySQL, or a Galera cluster of MariaDB, all on this machine."""

import os
import secrets
import shutil
import signal
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pymysql

from emsworker.local import ServerMissing
from emsworker.local.errors import ServerFailed
from emsworker.local.files import ServerState
from emsworker.local.ports import free_port
from tests.support.prepared import PreparedDatabase
from tests.support.replication import run
from tests.support.waiting import until

Engine = Literal["group-replication", "galera"]
_START_S = 120.0
_NODES = 3
_PROVIDERS = ("/usr/lib/galera/libgalera_smm.so", "/usr/lib64/galera-4/libgalera_smm.so", "/usr/lib/libgalera_smm.so")
_DURABLE = {"log-bin": "bin", "innodb-buffer-pool-size": "64M", "max-connections": "300", "performance-schema": "ON"}


class Node(PreparedDatabase):
    """A node: the accounts have the same passwords on all, and a new one begins with a copy of the first one's files."""

    account = ""
    passwords = ("", "")
    template: Path | None = None

    def _next_state(self) -> ServerState:
        password, admin_password = self.passwords
        return replace(super()._next_state(), password=password, admin_password=admin_password)

    def _initialize(self, timeout_s: float) -> None:
        if self.template is None:
            super()._initialize(timeout_s)
        else:
            shutil.copytree(self.template, self._data)
            (self._data / "auto.cnf").unlink(missing_ok=True)
        if self.account:
            self.give_away()

    def give_away(self) -> None:
        """Hand the folder to the account that the server runs as: as root, Galera's transfer by rsync fails."""
        for path in (self.folder, *self.folder.rglob("*")):
            shutil.chown(path, self.account, self.account)

    def _command(self, state: ServerState) -> list[str]:
        command = super()._command(state)
        if self.account:
            command = [f"--user={self.account}" if part == "--user=root" else part for part in command]
            self.give_away()
        return [*(part.replace(":PORT", f":{state.port}") for part in command), *self.more]

    more: tuple[str, ...] = ()

    def options_are(self, **options: str) -> None:
        """Change options, for the next start."""
        self._options |= {name.replace("_", "-"): value for name, value in options.items()}

    def ask(self, *statements: str) -> list[dict[str, Any]]:
        """Run statements as the administrator; returns the rows of the last."""
        return run(self, "SET autocommit = 1", *statements)

    frozen = False

    def freeze(self) -> None:
        """Stop its process as it is: connections stay open, and nobody answers."""
        assert self.pid
        os.kill(self.pid, signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        """Let it go on."""
        self.frozen = False
        if self.pid:
            os.kill(self.pid, signal.SIGCONT)

    @property
    def answers(self) -> bool:
        """Whether it can be asked."""
        return self.alive and not self.frozen


class Cluster(ABC):
    """Nodes that hold the same database.

    Args:
        folder: of all files; every account must be able to enter it.
        options: more options of every node.
    """

    name: Engine
    flavor: Literal["mariadb", "mysql"]

    def __init__(self, folder: Path, options: dict[str, str] | None = None) -> None:
        self.folder = folder
        passwords = secrets.token_hex(16), secrets.token_hex(16)
        self.nodes = [
            Node(folder / str(number), self.flavor, free_port(), self._options(number) | (options or {}))
            for number in range(_NODES)
        ]
        for node in self.nodes:
            node.passwords = passwords

    @abstractmethod
    def _options(self, number: int) -> dict[str, str]:
        """Options of a node."""

    @abstractmethod
    def begin(self) -> None:
        """Start all nodes, as one cluster."""

    @abstractmethod
    def start_alone(self, number: int) -> None:
        """Start a node that is down, which takes no part: it can be written to, and nobody else gets that."""

    @abstractmethod
    def rejoin(self, number: int) -> None:
        """Start a node that is down or was started alone, and wait until it takes part again."""

    def settle(self, number: int) -> None:
        """Wait until a node that was frozen, and is not any more, knows what has become of it."""
        if self.nodes[number].alive:
            until(lambda: self.is_settled(number), _START_S, f"node {number} knows", 0.2)

    @abstractmethod
    def is_settled(self, number: int) -> bool:
        """Whether a node knows what the others think of it."""

    @abstractmethod
    def view(self, node: Node) -> tuple[int, list[int]]:
        """The primary's number, or -1, and the numbers of all that take part, in the eyes of a node.

        One that was away still sees, for a moment, what it saw before.
        """

    def _views(self) -> list[tuple[int, list[int]]]:
        found = []
        for node in self.nodes:
            try:
                if node.answers:
                    found.append(self.view(node))
            except pymysql.err.MySQLError:
                continue
        return found

    def sees_majority(self, number: int) -> bool:
        """Whether a node itself sees that a majority of all takes part."""
        try:
            return 2 * len(self.view(self.nodes[number])[1]) > len(self.nodes)
        except pymysql.err.MySQLError:
            return False

    def members(self) -> list[int]:
        """The numbers of the nodes that take part, in the eyes of a majority of all."""
        views = self._views()
        most = len(self.nodes) // 2 + 1
        return [n for n in range(len(self.nodes)) if sum(n in members for _, members in views) >= most]

    def primary(self) -> int:
        """The number of the node that clients should write to, in the eyes of a majority, or -1."""
        votes = Counter(primary for primary, _ in self._views())
        number, count = votes.most_common(1)[0] if votes else (-1, 0)
        return number if 2 * count > len(self.nodes) else -1

    def number_at(self, port: int) -> int:
        """The number of the node at a port."""
        return next(number for number, node in enumerate(self.nodes) if node.port == port)

    @property
    def url(self) -> str:
        """The address of all nodes, as clients are told it."""
        return self.url_of(*range(_NODES))

    def url_of(self, *numbers: int) -> str:
        """The address of some nodes."""
        first = urlsplit(self.nodes[0].url)
        places = ",".join(f"127.0.0.1:{self.nodes[number].port}" for number in numbers)
        return f"mysql://{first.username}:{first.password}@{places}/ems"

    def wait_whole(self, timeout_s: float = _START_S) -> None:
        """Wait until every node takes part."""
        until(lambda: len(self.members()) == len(self.nodes), timeout_s, f"all take part: {self.members()}", 0.2)

    def close(self) -> None:
        """Kill all nodes and delete their files."""
        for node in self.nodes:
            node.thaw()
            node.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class GroupReplication(Cluster):
    """MySQL's own: one node takes writes, unless ``single`` is false, and the others elect another when it is away."""

    name = "group-replication"
    flavor = "mysql"

    def __init__(self, folder: Path, options: dict[str, str] | None = None, *, single: bool = True) -> None:
        self._group, self._single = str(uuid.uuid4()), single
        self._ports = [free_port() for _ in range(_NODES)]
        super().__init__(folder, options)

    def _options(self, number: int) -> dict[str, str]:
        group = {
            "group-name": self._group,
            "local-address": f"127.0.0.1:{self._ports[number]}",
            "group-seeds": ",".join(f"127.0.0.1:{port}" for port in self._ports),
            "ip-allowlist": "127.0.0.1/32",
            "recovery-get-public-key": "ON",
            "single-primary-mode": "ON" if self._single else "OFF",
            "enforce-update-everywhere-checks": "OFF" if self._single else "ON",
            "start-on-boot": "OFF",  # the accounts are made at each start, which a member that is read-only refuses
        }
        return {
            **_DURABLE,
            "server-id": str(number + 1),
            "gtid-mode": "ON",
            "enforce-gtid-consistency": "ON",
            "relay-log": "relay",
            "report-host": "127.0.0.1",
            "plugin-load-add": "group_replication.so",
            **{f"loose-group-replication-{name}": value for name, value in group.items()},
        }

    def begin(self) -> None:
        """Start all nodes, as one group."""
        first, *others = self.nodes
        first.start(_START_S)
        template = self.folder / "template"
        first.stop(60)
        shutil.copytree(first.folder / "data", template, ignore=shutil.ignore_patterns("bin.*", "relay*"))
        for node in self.nodes:
            node.template = template
            node.start(_START_S)
            self._attach(node)
        first.ask(
            "SET GLOBAL group_replication_bootstrap_group = ON",
            "START GROUP_REPLICATION",
            "SET GLOBAL group_replication_bootstrap_group = OFF",
        )
        for node in others:
            node.ask("START GROUP_REPLICATION")
        self.wait_whole()

    @staticmethod
    def _attach(node: Node) -> None:
        state = urlsplit(node.admin_url)
        node.ask(
            "SET sql_log_bin = 0",
            "GRANT SELECT ON performance_schema.replication_group_members TO 'ems'@'localhost'",
            "GRANT SELECT ON performance_schema.replication_group_members TO 'ems'@'127.0.0.1'",
            f"CHANGE REPLICATION SOURCE TO SOURCE_USER = 'root', SOURCE_PASSWORD = '{state.password}' "
            "FOR CHANNEL 'group_replication_recovery'",
        )

    def start_alone(self, number: int) -> None:
        """Start a former member, which does not join."""
        self.nodes[number].start(_START_S)

    def rejoin(self, number: int) -> None:
        """Start a node that is down, and wait until it is a member again."""
        node = self.nodes[number]
        node.start(_START_S)
        if not self._is_online(node):
            node.ask("STOP GROUP_REPLICATION", "START GROUP_REPLICATION")
        until(lambda: number in self.members(), _START_S, f"node {number} joins", 0.2)

    @staticmethod
    def _is_online(node: Node) -> bool:
        return bool(
            node.ask(
                "SELECT 1 FROM performance_schema.replication_group_members "
                "WHERE MEMBER_ID = @@server_uuid AND MEMBER_STATE = 'ONLINE'"
            )
        )

    def is_settled(self, number: int) -> bool:
        """Whether it was expelled and knows, or is one of the members again."""
        return number in self.members() or not self._is_online(self.nodes[number])

    def view(self, node: Node) -> tuple[int, list[int]]:
        """The primary, and the members that are ONLINE."""
        rows = node.ask(
            "SELECT MEMBER_PORT port, MEMBER_ROLE role FROM performance_schema.replication_group_members "
            "WHERE MEMBER_STATE = 'ONLINE' AND MEMBER_PORT > 0"
        )
        numbers = {self.number_at(row["port"]): row["role"] for row in rows}
        primaries = [number for number, role in sorted(numbers.items()) if role == "PRIMARY"]
        return (primaries or [-1])[0], sorted(numbers)


class Galera(Cluster):
    """MariaDB's: each node takes writes, and one that conflicts with another node's is rolled back."""

    name = "galera"
    flavor = "mariadb"

    def __init__(self, folder: Path, options: dict[str, str] | None = None) -> None:
        self._provider = next((path for path in _PROVIDERS if Path(path).exists()), None)
        if self._provider is None:
            raise ServerMissing("no Galera found: Debian/Ubuntu `apt-get install galera-4 rsync`")
        self._ports = [free_port() for _ in range(_NODES)]
        super().__init__(folder, options)
        if os.geteuid() == 0:
            for node in self.nodes:
                node.account = "mysql"

    def _options(self, number: int) -> dict[str, str]:
        port = self._ports[number]
        provider = {
            "base_host": "127.0.0.1",
            "base_port": str(port),
            "gmcast.listen_addr": f"tcp://127.0.0.1:{port}",
            "ist.recv_addr": f"127.0.0.1:{free_port()}",
            "pc.recovery": "false",
        }
        return {
            "innodb-buffer-pool-size": "64M",
            "max-connections": "300",
            "binlog-format": "ROW",
            "innodb-autoinc-lock-mode": "2",
            "wsrep-on": "ON",
            "wsrep-provider": str(self._provider),
            "wsrep-provider-options": ";".join(f"{name}={value}" for name, value in provider.items()),
            "wsrep-cluster-name": "ems-tests",
            "wsrep-cluster-address": "gcomm://" + ",".join(f"127.0.0.1:{port}" for port in self._ports),
            "wsrep-node-address": "127.0.0.1",
            "wsrep-node-name": f"node{number}",
            "wsrep-node-incoming-address": "127.0.0.1:PORT",
            "wsrep-sst-method": "rsync",
            "wsrep-sst-receive-address": f"127.0.0.1:{free_port()}",
        }

    def begin(self) -> None:
        """Start all nodes, as one cluster: the first begins it, the others get its files."""
        self.folder.chmod(0o755)
        first, *others = self.nodes
        first.more = ("--wsrep-new-cluster",)
        first.start(_START_S)
        first.more = ()
        for number in range(1, len(others) + 1):
            self.rejoin(number)
        self.wait_whole()

    def start_alone(self, number: int) -> None:
        """Start a node with its replication switched off."""
        node = self.nodes[number]
        alone = ("--wsrep-on=OFF", "--wsrep-provider=none")
        # What was prepared when it was killed would have been settled by the cluster; without it, MariaDB refuses to
        # start until an administrator has said what becomes of that, and ends when it has done so.
        node.more = (*alone, "--tc-heuristic-recover=ROLLBACK")
        with suppress(ServerFailed):
            node.start(_START_S)
        node.more = alone
        node.start(_START_S)

    def rejoin(self, number: int) -> None:
        """Start a node that is down or was started alone, and wait until it has what the others have."""
        node = self.nodes[number]
        if node.more:
            node.kill()
            node.more = ()
        node.start(_START_S)
        until(lambda: self._is_synced(number), _START_S, f"node {number} is synced", 0.2)

    def _is_synced(self, number: int) -> bool:
        status = self.status(self.nodes[number])
        return status["wsrep_cluster_status"] == "Primary" and status["wsrep_local_state_comment"] == "Synced"

    def is_settled(self, number: int) -> bool:
        """Whether it takes part again, or was started alone: an expelled node joins by itself."""
        return number in self.members() or bool(self.nodes[number].more)

    def view(self, node: Node) -> tuple[int, list[int]]:
        """The first of those that are synced, and all of them; a node sees the names of the others only."""
        status = self.status(node)
        if status["wsrep_cluster_status"] != "Primary" or status["wsrep_local_state_comment"] != "Synced":
            return -1, []
        ports = [
            int(place.rsplit(":", 1)[1]) for place in status["wsrep_incoming_addresses"].split(",") if ":" in place
        ]
        numbers = sorted(self.number_at(port) for port in ports)
        return (numbers or [-1])[0], numbers

    @staticmethod
    def status(node: Node) -> dict[str, str]:
        """Its status variables of Galera."""
        return {row["Variable_name"]: row["Value"] for row in node.ask("SHOW STATUS LIKE 'wsrep%'")}


_KINDS: dict[Engine, type[Cluster]] = {"group-replication": GroupReplication, "galera": Galera}
ENGINES: Sequence[Engine] = tuple(_KINDS)


@contextmanager
def clustered(engine: Engine, options: dict[str, str] | None = None) -> Iterator[Any]:
    """Start three nodes; they are killed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="ems-cluster-"))
    with ExitStack() as stack:
        cluster = _KINDS[engine](folder, options)
        stack.callback(cluster.close)
        cluster.begin()
        yield cluster
