"""One address for a replication group: MySQL Router leads to any member, and only the primary is written to."""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from emsworker import Ems, FenceLost, LeaseLost
from emsworker.core.errors import StoreUnavailable
from emsworker.core.ids import uid_text
from emsworker.local import ServerMissing
from emsworker.store.engine.database import Database
from emsworker.store.engine.replica import ReplicaDatabase
from emsworker.store.engine.sql import Sql
from tests.cluster.conftest import On
from tests.cluster.test_group_replication import Sender, fail_over
from tests.support.clusters import Cluster, GroupReplication, Node
from tests.support.looker import Looker
from tests.support.machine import machine_s
from tests.support.routers import CONFIGURATION, Router, routed
from tests.support.servers import connect, must_run
from tests.support.waiting import until
from tests.support.worker import Program

pytestmark = [pytest.mark.few, pytest.mark.xdist_group("group")]

_SENDERS = 10  # each with connections of its own, as those of a process
_MOST_HELD = 120  # connections to a frozen member; 60 were seen, and 250 when each look opened one


@pytest.fixture(scope="module")
def router(group: Cluster) -> Iterator[Router]:
    """A router to all members, each in its turn."""
    try:
        with routed(group, "round-robin") as router:
            yield router
    except ServerMissing as error:
        if must_run("router"):
            raise
        pytest.skip(str(error))


def _uids(node: Node) -> Counter[bytes]:
    with connect(node.admin_url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT uid FROM ems.ems_message WHERE uid IS NOT NULL")
        return Counter(uid for (uid,) in cursor.fetchall())


class PrimaryLooker(Looker):
    """Looks into the primary itself, and tells the programs another way to it."""

    def __init__(self, url: str, cluster: Cluster) -> None:
        super().__init__(url)
        self._cluster = cluster

    def _rows(self, statement: str, args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        with connect(self._cluster.url_of(self._cluster.primary())) as connection, connection.cursor() as cursor:
            cursor.execute(statement, args)
            return list(cursor.fetchall())


class Puller(threading.Thread):
    """A consumer of its own group, until it is stopped."""

    def __init__(self, app: Ems) -> None:
        super().__init__(daemon=True)
        self._app = app
        self.stopping = threading.Event()
        self.seen: list[str] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with self._app.consumer("t", "pulled") as consumer:
                while not self.stopping.is_set():
                    with contextlib.suppress(
                        StoreUnavailable, LeaseLost, FenceLost
                    ):  # while there is no primary; they come again
                        messages = consumer.fetch(50, wait=0.2)
                        consumer.ack(*messages)
                        self.seen += [message.id for message in messages]
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self.stopping.set()
        self.join(90)
        self._app.close()


class AtWork:
    """A worker, which is the beat as well, and a consumer, all of whom know one address."""

    def __init__(self, on: On, router: Router, folder: Path) -> None:
        self._looker = PrimaryLooker(router.url, on.cluster)
        patient = {"lease_s": 4, "renew_s": 1, "timeout_s": 120, "publish_timeout_s": 90}
        self.worker = Program(
            "worker", self._looker, folder / "worker.log", patient, app="tests.cluster.effects:app", threads=2
        )
        self.puller = Puller(on.app(router.url, publish_timeout_s=90))

    def begin(self) -> None:
        self._looker.rows("CREATE TABLE IF NOT EXISTS effect (id INT PRIMARY KEY AUTO_INCREMENT, uid CHAR(36))")
        self.worker.wait_ready()
        self.children = self.worker.children()
        self.puller.start()

    def effects(self) -> Counter[str]:
        return Counter(uid for (uid,) in self._looker.rows("SELECT uid FROM effect"))

    def check(self, ids: set[str]) -> None:
        """Wait until all is done, and see that nothing was charged, and that nobody was replaced."""
        until(lambda: ids <= self.effects().keys(), 60, f"each has its effect; {self.worker.text()[-3000:]}")
        until(lambda: ids <= set(self.puller.seen) or self.puller.error, 60, "each was pulled")
        assert self.puller.error is None
        effects = self.effects()
        assert {uid: effects[uid] for uid in ids if effects[uid] != 1} == {}, "once"
        assert self._looker.rows("SELECT * FROM ems_attempt") == self._looker.rows("SELECT * FROM ems_dead") == []
        assert self.worker.children() == self.children, "no process has ended"
        assert self.worker.stop() == 0, self.worker.text()[-3000:]

    def close(self) -> None:
        self.puller.end()
        if self.worker.process.poll() is None:
            self.worker.kill_all()


@contextmanager
def at_work(on: On, router: Router, folder: Path) -> Iterator[AtWork]:
    """Start a worker and a consumer; they are ended at the end."""
    working = AtWork(on, router, folder)
    try:
        working.begin()
        yield working
    finally:
        working.close()


@pytest.mark.parametrize("fault", ["frozen", "killed"])
def test_the_next_primary_is_found_behind_one_address(on_group: On, router: Router, fault: str, tmp_path: Path) -> None:
    group = on_group.cluster
    assert isinstance(group, GroupReplication)

    hit = group.nodes[group.primary()]

    def look_anew() -> str:
        held = router.connections_to(hit)
        began = machine_s()
        port = Database(router.url).call(lambda session: session.rows(Sql("SELECT @@port")))[0][0]
        assert port == group.nodes[group.primary()].port
        took_s = machine_s() - began
        assert held <= _MOST_HELD, "looks for the next primary do not use up the router's connections"
        return f"a new process was there in {took_s:.1f} s; the router held {held} connections to it"

    apps = [on_group.app(router.url, publish_timeout_s=90) for _ in range(_SENDERS)]
    senders = [Sender(app) for app in apps]
    with at_work(on_group, router, tmp_path) as working:
        first = fail_over(group, senders, fault, look_anew)
        delayed = apps[0].send("t", "moved into the stream by the beat", countdown=0.5)
        uids = [uid for sender in senders for _, uid in sender.confirmed]
        working.check({*map(uid_text, uids), delayed.id})
    stored = _uids(group.nodes[group.primary()])
    assert {uid: stored[uid] for uid in uids if stored[uid] != 1} == {}, "each is there once"
    until(lambda: set(uids) <= _uids(group.nodes[first]).keys(), 30, "the one that was away has all", 0.5)


def test_every_connection_ends_at_the_primary(on_group: On, router: Router) -> None:
    primary = on_group.cluster.nodes[on_group.cluster.primary()].port
    for _ in range(7):
        assert Database(router.url).call(lambda session: session.rows(Sql("SELECT @@port"))) == ((primary,),)


def test_a_session_that_only_reads_leaves_a_demoted_primary(on_group: On, router: Router) -> None:
    group = on_group.cluster
    old = group.primary()
    new = (old + 1) % len(group.nodes)
    with Database(router.url).session() as session:
        assert session.rows(Sql("SELECT @@port")) == ((group.nodes[old].port,),)
        uuid = group.nodes[new].ask("SELECT @@server_uuid uuid")[0]["uuid"]
        group.nodes[old].ask(f"SELECT group_replication_set_as_primary('{uuid}')")
        until(lambda: group.primary() == new, 30, "the other one is primary", 0.1)
        until(lambda: session.rows(Sql("SELECT @@port")) == ((group.nodes[new].port,),), 10, "it goes there", 0.1)


def test_replicas_are_read_through_the_router_as_they_come(on_group: On, router: Router) -> None:
    seen = set()
    for _ in range(6):
        with ReplicaDatabase(router.url).session() as session:
            seen.add(session.rows(Sql("SELECT @@port"))[0][0])
    assert seen == {node.port for node in on_group.cluster.nodes}


@pytest.mark.usefixtures("router")  # which skips without the program
def test_a_router_that_leads_to_secondaries_only_is_refused_by_name(on_group: On) -> None:
    group = on_group.cluster
    primary = group.primary()
    secondaries = [node for number, node in enumerate(group.nodes) if number != primary]
    with routed(group, "round-robin", secondaries) as router:
        app = on_group.app(router.url, publish_timeout_s=1)
        with pytest.raises(StoreUnavailable, match=r"can be written to: .* is ONLINE SECONDARY") as refused:
            app.send("t", "to nobody")
        app.close()
        assert all(f":{node.port})" in str(refused.value) for node in secondaries)


def test_a_secondary_that_is_named_alone_can_be_read(on_group: On) -> None:
    group = on_group.cluster
    secondary = (group.primary() + 1) % len(group.nodes)
    url = group.url_of(secondary)
    with Database(url).session() as session:
        assert session.rows(Sql("SELECT @@port")) == ((group.nodes[secondary].port,),)
    app = on_group.app(url, publish_timeout_s=1)
    with pytest.raises(StoreUnavailable, match=rf":{group.nodes[secondary].port}: .*read-only"):
        app.send("t", "not here")
    app.close()


def test_the_page_shows_the_configuration_of_these_tests() -> None:
    shown = CONFIGURATION.format(port=6446, destinations="db1:3306,db2:3306,db3:3306", strategy="round-robin")
    assert shown in (Path(__file__).parents[2] / "docs/how-to/cluster.md").read_text()
