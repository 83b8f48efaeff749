"""A primary and its semi-synchronous replica, both real, and what an operator does when the primary dies."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pymysql

from emsworker.local import LocalDatabase as Server
from emsworker.local.engines import Flavor
from tests.support.prepared import PreparedDatabase
from tests.support.servers import connect
from tests.support.waiting import until


@dataclass(frozen=True)
class Words:
    """How a flavor is told to replicate; a commit on the primary returns when the replica has it.

    Args:
        both, primary, replica: options of the servers.
        attach: the statement that names the primary: its port, and its administrator's password.
        source, follower: what statements and status variables call the two.
    """

    both: dict[str, str]
    primary: dict[str, str]
    replica: dict[str, str]
    attach: str
    source: str
    follower: str


WORDS = {
    "mariadb": Words(
        {"log-bin": "bin", "log-slave-updates": "ON"},
        {
            "rpl-semi-sync-master-enabled": "ON",
            "rpl-semi-sync-master-timeout": "60000",
            "rpl-semi-sync-master-wait-point": "AFTER_SYNC",  # as MySQL does by itself
        },
        {"rpl-semi-sync-slave-enabled": "ON"},
        "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, MASTER_USER = 'root', "
        "MASTER_PASSWORD = '{password}', MASTER_USE_GTID = slave_pos",
        "master",
        "SLAVE",
    ),
    "mysql": Words(
        {
            "log-bin": "bin",
            "gtid-mode": "ON",
            "enforce-gtid-consistency": "ON",
            "plugin-load-add": "semisync_source.so;semisync_replica.so",
        },
        {"loose-rpl-semi-sync-source-enabled": "ON", "loose-rpl-semi-sync-source-timeout": "60000"},
        {"loose-rpl-semi-sync-replica-enabled": "ON"},
        "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {port}, SOURCE_USER = 'root', "
        "SOURCE_PASSWORD = '{password}', SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1",
        "source",
        "REPLICA",
    ),
}


def run(server: Server, *statements: str) -> list[dict[str, Any]]:
    """Run statements as the administrator; returns the rows of the last."""
    with connect(server.admin_url, cursorclass=pymysql.cursors.DictCursor) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())  # type: ignore[arg-type]


class Replicated:
    """A primary and its replica."""

    def __init__(self, primary: Server, replica: Server) -> None:
        self.primary, self.replica, self._words = primary, replica, WORDS[primary.flavor]
        one, two, admin = (urlsplit(url) for url in (primary.url, replica.url, primary.admin_url))
        accounts = [f"'ems'@'{host}'" for host in ("localhost", "127.0.0.1")]
        run(
            replica,
            "SET sql_log_bin = 0",
            *(f"ALTER USER {account} IDENTIFIED BY '{one.password}'" for account in accounts),
            self._words.attach.format(port=admin.port, password=admin.password),
            f"START {self._words.follower}",
        )
        self.url = primary.url.replace(f":{one.port}", f":{one.port},127.0.0.1:{two.port}")
        self.replica_url = primary.url.replace(f":{one.port}", f":{two.port}")
        name = f"Rpl_semi_sync_{self._words.source}_clients"
        until(lambda: run(primary, f"SHOW STATUS WHERE Variable_name = '{name}' AND Value = 1"), 20, "it acknowledges")

    def fail_over(self) -> None:
        """Kill the primary, let the replica apply all that it has received, and promote it."""
        self.primary.kill()
        word = self._words.follower
        run(self.replica, f"STOP {word} IO_THREAD")
        until(self.has_applied_all, 20, "all is applied")
        run(self.replica, f"STOP {word}", f"RESET {word} ALL", "SET GLOBAL read_only = 0")

    def has_applied_all(self) -> bool:
        """Whether all that the replica has received is applied."""
        word = self._words.follower
        status = run(self.replica, f"SHOW {word} STATUS")[0]
        assert status[f"{word.capitalize()}_SQL_Running"] == "Yes", status["Last_SQL_Error"]
        state = status[f"{word.capitalize()}_SQL_Running_State"]  # None while its thread begins
        return state is not None and "has read all relay log" in state


@contextmanager
def replicating(flavor: Flavor, folder: Path) -> Iterator[Replicated]:
    """Start both; they are killed at the end."""
    words = WORDS[flavor]
    with ExitStack() as stack:
        servers = []
        for number, own in enumerate((words.primary, words.replica | {"read-only": "ON"}), 1):
            options = words.both | {"server-id": str(number)} | own
            made = PreparedDatabase(folder / str(number), flavor, options=options)
            stack.callback(made.kill)
            made.start(120)
            servers.append(made)
        yield Replicated(*servers)
