"""W14 with real replication: the primary is killed, its semi-synchronous replica takes over, nothing confirmed is lost."""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pymysql
import pytest

from emsworker import Ems
from emsworker.core.ids import parse_uid
from emsworker.local import Database as Server
from emsworker.store.database import Database
from emsworker.store.schema import migrate
from tests.process.record import Record
from tests.support.looker import Looker
from tests.support.servers import connect
from tests.support.waiting import until
from tests.support.worker import Program

pytestmark = pytest.mark.alone

GOES_ON_S = 5.0


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
        return "has read all relay log" in status[f"{word.capitalize()}_SQL_Running_State"]


@pytest.fixture
def replicated(server: Server, tmp_path: Path) -> Iterator[Replicated]:
    words = WORDS[server.flavor]
    with ExitStack() as stack:
        servers = []
        for number, own in enumerate((words.primary, words.replica | {"read-only": "ON"}), 1):
            options = words.both | {"server-id": str(number)} | own
            made = Server(tmp_path / str(number), server.flavor, options=options)
            stack.callback(made.kill)
            made.start(120)
            servers.append(made)
        yield Replicated(*servers)


class Sender(threading.Thread):
    """Sends numbers one after the other, and keeps when each was confirmed, and under which id."""

    def __init__(self, app: Ems) -> None:
        super().__init__(daemon=True)
        self._app = app
        self.stopping = threading.Event()
        self.confirmed: dict[int, tuple[float, str]] = {}
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                number = len(self.confirmed)
                receipt = self._app.send("acts", {"n": number})
                self.confirmed[number] = (time.monotonic(), receipt.id)
        except BaseException as error:
            self.error = error


class ReplicaLooker(Looker):
    """Looks into the replica, but tells the programs of both servers."""

    def __init__(self, replicated: Replicated) -> None:
        super().__init__(replicated.url)
        self._connection = connect(replicated.replica_url, autocommit=True)


def test_w14_sends_and_claims_go_on_with_the_replica_when_the_primary_dies(
    replicated: Replicated, tmp_path: Path
) -> None:
    with Database(replicated.url).session() as session:
        migrate(session)
    until(replicated.has_applied_all, 20, "the tables are there")
    looker, record = ReplicaLooker(replicated), Record(tmp_path)
    acts = {"app": "tests.process.apps.actor:app", "topics": ["acts"], "groups": ["a"], "threads": 2}
    worker = Program("worker", looker, tmp_path / "worker.log", {}, **acts)
    sender = Sender(Ems("sender", url=replicated.url))
    try:
        worker.wait_ready()
        sender.start()
        until(lambda: len(record.events("end")) > 100, 20, "it runs")
        replicated.fail_over()
        promoted, before = time.monotonic(), len(sender.confirmed)
        until(lambda: len(sender.confirmed) > before + 100, GOES_ON_S, f"it sends; {sender.error}")
        until(lambda: record.numbers("end")[-1] > before, GOES_ON_S, f"it claims:\n{worker.text()[-2000:]}")
        sender.stopping.set()
        sender.join(30)
        until(lambda: set(sender.confirmed) <= set(record.numbers("end")), 20, "all confirmed ones are run")
        assert worker.stop() == 0
    finally:
        sender.stopping.set()
        if worker.process.poll() is None:
            worker.kill_all()
    first_send_s = min(at for at, _ in sender.confirmed.values() if at > promoted) - promoted
    first_claim_s = min(one["at"] for one in record.events("start") if one["at"] > promoted) - promoted
    assert sender.error is None
    print(
        f"{len(sender.confirmed)} sent; after the promotion a send after {first_send_s:.2f} s, a claim after {first_claim_s:.2f} s"
    )
    assert max(first_send_s, first_claim_s) < GOES_ON_S
    kept = looker.rows("SELECT uid, body FROM ems_message WHERE kind = 'message'")
    assert {uid for uid, _ in kept} == {parse_uid(message_id) for _, message_id in sender.confirmed.values()}
    assert Counter(json.loads(body)["n"] for _, body in kept) == Counter(sender.confirmed.keys()), "each once"
    looker.close()
