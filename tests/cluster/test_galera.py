"""Galera: what was confirmed is there and what was refused is not, whoever writes where; one node is chosen by all."""

import itertools
import threading
import time
from collections import Counter

import pytest

from emsworker.core.errors import Conflict, ConnectionLost, StoreUnavailable
from emsworker.core.ids import parse_uid
from emsworker.core.model import Claim, Order
from emsworker.core.work import NothingClaimed
from emsworker.store.engine.database import Database
from emsworker.store.engine.session import Result, Session
from emsworker.store.engine.sql import Sql
from emsworker.store.groups import ordered
from tests.cluster.conftest import On
from tests.support.clusters import Galera
from tests.support.machine import machine_s
from tests.support.recycling import prepare_stream
from tests.support.servers import connect
from tests.support.streams import in_threads, open_stream
from tests.support.waiting import until

pytestmark = [pytest.mark.few, pytest.mark.xdist_group("galera")]

WRITES_S = 15.0
PORT = Sql("SELECT @@port")


class Writer:
    """Writes rows of its own and one that all change, in packets and in transactions, on one node."""

    def __init__(self, number: int, session: Session) -> None:
        self._number, self._session = number, session
        self.confirmed: set[int] = set()
        self.refused: set[int] = set()

    def work(self, until_s: float) -> None:
        for count in itertools.count():
            if time.monotonic() > until_s:
                return
            row = self._number * 10**9 + count
            try:
                (self._packet if count % 2 else self._transaction)(row)
                self.confirmed.add(row)
            except Conflict:
                self.refused.add(row)

    def _statements(self, row: int) -> tuple[Sql, ...]:
        return (
            Sql(f"INSERT INTO two VALUES ({row}, {self._number})"),
            Sql("UPDATE hot SET n = n + 1 WHERE id = 1"),
            Sql("SELECT n FROM hot WHERE id = 1"),
            Sql(f"UPDATE two SET writer = {self._number} WHERE id = {row}"),
        )

    def _packet(self, row: int) -> None:
        packet = self._session.packet()
        packet.begin()
        for statement in self._statements(row):
            packet.add(statement)
        packet.commit()
        packet.send()

    def _transaction(self, row: int) -> None:
        def work(session: Session) -> None:
            for statement in self._statements(row):
                session.execute(statement)

        self._session.transaction(work)


def test_two_writers_lose_nothing_that_was_confirmed(on_galera: On) -> None:
    cluster = on_galera.cluster
    cluster.nodes[0].ask(
        "CREATE TABLE ems.two (id BIGINT PRIMARY KEY, writer INT) ENGINE=InnoDB",
        "CREATE TABLE ems.hot (id INT PRIMARY KEY, n BIGINT) ENGINE=InnoDB",
        "INSERT INTO ems.hot VALUES (1, 0)",
    )
    writers = [Writer(n, Database(cluster.url_of(n)).session(patient=False)) for n in (0, 1)]
    ends = time.monotonic() + WRITES_S
    in_threads(2, lambda number: writers[number].work(ends))
    confirmed, refused = (writers[0].confirmed | writers[1].confirmed), (writers[0].refused | writers[1].refused)
    with Database(cluster.url_of(2)).session() as reader:  # on the third node, at once
        there = {row[0] for row in reader.rows(Sql("SELECT id FROM two"))}
        changes = reader.rows(Sql("SELECT n FROM hot"))[0][0]
    print(
        f"{len(confirmed)} confirmed, {len(confirmed - there)} absent; {len(refused)} refused, {len(refused & there)} there"
    )
    assert len(confirmed) > 500 and len(refused) > 50, "they met"
    assert confirmed - there == set() and refused & there == set()
    assert changes == len(confirmed)


def test_a_read_sees_what_another_node_has_confirmed(on_galera: On) -> None:
    cluster = on_galera.cluster
    cluster.nodes[0].ask("CREATE TABLE ems.seen (id INT PRIMARY KEY) ENGINE=InnoDB")
    with Database(cluster.url_of(0)).session() as writer, Database(cluster.url_of(2)).session() as reader:
        for n in range(300):
            writer.execute(Sql(f"INSERT INTO seen VALUES ({n})"))
            assert reader.rows(Sql(f"SELECT id FROM seen WHERE id = {n}")) == ((n,),)


def test_a_partition_in_order_has_one_owner_on_all_nodes(on_galera: On, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = on_galera.cluster
    prepare_stream(cluster.url_of(0))
    with open_stream(cluster.url_of(0)) as stream, Database(cluster.url_of(1)).session() as there:
        topic = stream.topic("owned")
        group = stream.group(topic, order=Order.PARTITION)
        stream.app().send_many(topic.name, range(6))
        first, here, other = (stream.client() for _ in range(3))
        assert ordered.take_next(stream.session, stream.claimant(topic, group, first, 3), 0)
        stream.expire(first)
        stream.recover()
        send_on, taken = there.send_on, list[Claim]()

        def adopt_meanwhile(sql: Sql) -> list[Result]:
            """Between the other's look for a running claim and its look for one that waits."""
            if "state = 'waiting'" in sql and not taken:
                claim = ordered.take_next(stream.session, stream.claimant(topic, group, here, 3), 0)
                assert claim
                taken.append(claim)
                found = f"SELECT 1 FROM ems.ems_claim WHERE group_id = {group.id} AND client_id = '{here}'"
                until(lambda: cluster.nodes[1].ask(found), 20, "the other node has it", 0.1)
            return send_on(sql)

        monkeypatch.setattr(there, "send_on", adopt_meanwhile)
        passed = ordered.take_next(there, stream.claimant(topic, group, other, 3), 0)
        assert (taken[0].lo, taken[0].hi) == (1, 3)
        assert isinstance(passed, NothingClaimed), "what comes behind is not run beside it"
        assert stream.cursor(group) == 4


def test_sends_to_all_nodes_at_once_are_each_one_row(on_galera: On) -> None:
    cluster = on_galera.cluster
    apps = [on_galera.app(cluster.url_of(n)) for n in range(3)]
    apps[0].send("spread", -1)
    sent: list[str] = []

    def send(number: int) -> None:
        for n in range(100):
            sent.append(apps[number].send("spread", n, partition=0).id)

    in_threads(3, send)
    with connect(cluster.nodes[1].admin_url) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT m.uid FROM ems.ems_message m JOIN ems.ems_topic t ON t.id = m.topic_id WHERE t.name = 'spread'"
        )
        found = Counter(uid for (uid,) in cursor.fetchall() if uid is not None)
    assert max(found.values()) == 1
    assert {parse_uid(one) for one in sent} <= set(found)
    for app in apps:
        app.close()


def asked(session: Session) -> int:
    """The port of the node that a session uses, or 0 while that is away."""
    try:
        return int(session.rows(PORT)[0][0])
    except ConnectionLost:
        return 0


def test_all_processes_choose_the_same_node_and_meet_there_again(on_galera: On) -> None:
    cluster = on_galera.cluster
    with Database(cluster.url).session() as old:
        assert asked(old) == cluster.nodes[0].port
        cluster.nodes[0].kill()

        until(lambda: asked(old) == cluster.nodes[1].port, 20, "the next one")
        with Database(cluster.url).session() as new:
            until(lambda: asked(new) == cluster.nodes[1].port, 20, "a new process as well")
            cluster.rejoin(0)
            until(lambda: asked(old) == asked(new) == cluster.nodes[0].port, 30, "both go back")


def test_a_former_node_that_was_started_alone_is_not_written_to(on_galera: On) -> None:
    cluster = on_galera.cluster
    app = on_galera.app(publish_timeout_s=60)
    app.send("former", 0)
    cluster.nodes[0].kill()
    cluster.start_alone(0)
    try:
        assert cluster.nodes[0].ask("SELECT @@wsrep_on + @@read_only one")[0]["one"] == 0, "it is writable"
        uid = parse_uid(on_galera.app(publish_timeout_s=20).send("former", 1).id)
        rows = "SELECT uid FROM ems.ems_message WHERE `offset` > 0"
        assert uid in {row["uid"] for row in cluster.nodes[1].ask(rows)}
        assert uid not in {row["uid"] for row in cluster.nodes[0].ask(rows)}
        app.send("former", 2)
        alone = on_galera.app(cluster.url_of(0), publish_timeout_s=1)
        with pytest.raises(StoreUnavailable, match=r"configured for a Galera cluster .* and takes no part in it"):
            alone.send("former", "nor if only that is named")
        alone.close()
    finally:
        cluster.rejoin(0)
    cluster.wait_whole()
    app.close()


def test_a_node_without_a_majority_is_not_used(on_galera: On) -> None:
    cluster = on_galera.cluster
    app = on_galera.app(publish_timeout_s=4)
    app.send("alone", 0)
    try:
        for node in cluster.nodes[1:]:
            node.freeze()
        alone = cluster.nodes[0]
        until(lambda: Galera.status(alone)["wsrep_cluster_status"] != "Primary", 40, "the first is alone", 0.5)
        with pytest.raises(StoreUnavailable, match="not in the primary component of its Galera cluster"):
            on_galera.app(publish_timeout_s=2).send("alone", 1)
    finally:
        for node in cluster.nodes[1:]:
            node.thaw()
    cluster.wait_whole()
    app.send("alone", 2)
    app.close()


def test_a_frozen_node_is_given_up(on_galera: On) -> None:
    cluster = on_galera.cluster
    app = on_galera.app(publish_timeout_s=60)
    app.send("frozen", 0)
    reader = Database(cluster.url).session()
    assert asked(reader) == cluster.nodes[0].port
    cluster.nodes[0].freeze()
    sends_s: list[float] = []

    def send() -> None:
        began = machine_s()
        app.send("frozen", len(sends_s))
        sends_s.append(machine_s() - began)

    def is_back() -> bool:
        send()
        return len(cluster.members()) == 3 and asked(reader) == cluster.nodes[0].port

    try:
        send()
        until(lambda: asked(reader) == cluster.nodes[1].port, 20, "the reader is there, too", 0.1)
    finally:
        cluster.nodes[0].thaw()
    until(is_back, 60, "it is used again")
    print(f"stalled for {sends_s[0]:.1f} s, and {max(sends_s[1:]):.1f} s when it came back")
    assert sends_s[0] < 20, "the cluster's own suspicion takes 5 to 15 s"
    assert max(sends_s[1:]) < 5, "nobody goes back to a node that does not know yet that it is out"
    reader.close()
    assert threading.active_count() < 100
    app.close()
