"""Group Replication: only the group's primary is written to, and one that is frozen is given up once another is elected."""

import threading
import time
from collections.abc import Callable, Sequence

import pytest

from emsworker import Ems
from emsworker.admin.check import Severity, check
from emsworker.core.errors import AccessDenied, StoreUnavailable
from emsworker.core.ids import parse_uid
from emsworker.store.engine.database import Database
from emsworker.store.engine.replica import topology
from emsworker.store.engine.sql import Sql
from tests.cluster.conftest import On
from tests.support.clusters import GroupReplication, Node
from tests.support.machine import machine_s
from tests.support.servers import connect
from tests.support.streams import in_threads
from tests.support.waiting import until

pytestmark = [pytest.mark.few, pytest.mark.xdist_group("group")]

BEYOND_ELECTION_S = 5.0


class Sender(threading.Thread):
    """Sends numbers one after the other, and notes when each was confirmed."""

    def __init__(self, app: Ems) -> None:
        super().__init__(daemon=True)
        self._app = app
        self.stopping = threading.Event()
        self.confirmed: list[tuple[float, bytes]] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping.wait(0.01):
                uid = parse_uid(self._app.send("t", len(self.confirmed)).id)
                self.confirmed.append((machine_s(), uid))
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self.stopping.set()
        self.join(90)


def _uids(node: Node) -> set[bytes]:
    with connect(node.admin_url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT uid FROM ems.ems_message WHERE uid IS NOT NULL")
        return {uid for (uid,) in cursor.fetchall()}


def _elected(group: GroupReplication, other_than: int) -> bool:
    """Whether the others have another primary."""
    return group.primary() not in (-1, other_than)


def fail_over(group: GroupReplication, senders: Sequence[Sender], fault: str, look_anew: Callable[[], str]) -> int:
    """Freeze or kill the primary under senders, who must go on soon after the election; all are whole at the end.

    Args:
        look_anew: called once the senders go on: what a new process sees; returns what is printed of that.

    Returns:
        the number of the node that was hit.
    """

    def gone_on(counts: Sequence[int]) -> bool:
        return all(len(one.confirmed) > count or one.error for one, count in zip(senders, counts, strict=True))

    first = group.primary()
    for sender in senders:
        sender.start()
    until(lambda: gone_on([20] * len(senders)), 30, "they send")
    hit_at = time.monotonic()
    if fault == "frozen":
        group.nodes[first].freeze()
    else:
        group.nodes[first].kill()
    try:
        until(lambda: _elected(group, first), 90, "another is elected", 0.1)
        elected, took_s = machine_s(), time.monotonic() - hit_at
        before = [len(sender.confirmed) for sender in senders]
        until(lambda: gone_on(before), 60, "they go on")
        resumed = machine_s()
        seen = look_anew()
        until(lambda: gone_on([count + 20 for count in before]), 30, "and on")
    finally:
        group.nodes[first].thaw()
        for sender in senders:
            sender.stopping.set()
        for sender in senders:
            sender.end()
    print(f"{fault}: elected after {took_s:.1f} s, all sent {resumed - elected:.1f} s after that; {seen}")
    assert [sender.error for sender in senders if sender.error] == []
    assert resumed - elected < BEYOND_ELECTION_S
    group.settle(first)
    group.rejoin(first)
    group.wait_whole()
    return first


@pytest.mark.parametrize("fault", ["frozen", "killed"])
def test_the_next_primary_is_found_and_nothing_confirmed_is_lost(on_group: On, fault: str) -> None:
    group = on_group.cluster
    assert isinstance(group, GroupReplication)

    def look_anew() -> str:
        with Database(on_group.url).session() as new:
            assert new.rows(Sql("SELECT 1")) == ((1,),)
        return "a new process finds it"

    sender = Sender(on_group.app(publish_timeout_s=90))
    fail_over(group, [sender], fault, look_anew)
    uids = {uid for _, uid in sender.confirmed}
    assert uids <= _uids(group.nodes[group.primary()])
    until(lambda: all(uids <= _uids(node) for node in group.nodes), 30, "every member has all", 0.5)


def test_a_former_member_that_was_started_alone_is_not_written_to(on_group: On) -> None:
    group = on_group.cluster
    assert isinstance(group, GroupReplication)
    away = group.primary()
    group.nodes[away].kill()
    until(lambda: _elected(group, away), 90, "another is elected", 0.2)
    group.start_alone(away)
    assert group.nodes[away].ask("SELECT @@super_read_only one")[0]["one"] == 0, "it is writable"
    order = (away, *(n for n in range(3) if n != away))
    app = on_group.app(group.url_of(*order))
    uid = parse_uid(app.send("t", "not to the former member").id)
    assert uid in _uids(group.nodes[group.primary()]) and uid not in _uids(group.nodes[away])
    app.close()
    alone = on_group.app(group.url_of(away), publish_timeout_s=1)
    with pytest.raises(StoreUnavailable, match="OFFLINE in it: START GROUP_REPLICATION"):
        alone.send("t", "nor if only that is named")
    alone.close()
    group.rejoin(away)
    group.wait_whole()


def test_a_member_without_a_majority_is_not_used(on_group: On) -> None:
    group = on_group.cluster
    primary = group.primary()
    others = [node for number, node in enumerate(group.nodes) if number != primary]
    try:
        for node in others:
            node.freeze()
        app = on_group.app(publish_timeout_s=20)
        began = machine_s()
        with pytest.raises(StoreUnavailable, match="cannot reach 2 of the 3 members"):
            until(lambda: app.send("t", "unknown") is None, 40, "it is refused")
        assert machine_s() - began < 35, "a commit that waits for a majority is given up, too"
        app.close()
    finally:
        for node in others:
            node.thaw()
    until(lambda: len(group.members()) == 3, 60, "they are back", 0.5)
    app = on_group.app(publish_timeout_s=60)
    app.send("t", "again")
    app.close()


def test_who_may_not_read_the_members_is_told_what_to_grant(on_group: On) -> None:
    group = on_group.cluster
    group.nodes[group.primary()].ask(
        "CREATE USER 'blind'@'127.0.0.1' IDENTIFIED BY 'secret'", "GRANT ALL ON ems.* TO 'blind'@'127.0.0.1'"
    )
    url = on_group.url.replace(on_group.url.split("@")[0], "mysql://blind:secret")
    with pytest.raises(
        AccessDenied, match=r"GRANT SELECT ON performance_schema.replication_group_members TO 'blind'@'127"
    ):
        Database(url).call(lambda session: session.rows(Sql("SELECT 1")))


@pytest.mark.parametrize("consistency", ["BEFORE_ON_PRIMARY_FAILOVER", "AFTER"])
def test_each_consistency_mode_is_named_and_keeps_what_was_confirmed(on_group: On, consistency: str) -> None:
    group = on_group.cluster
    app = on_group.app(publish_timeout_s=60)
    try:
        for node in group.nodes:
            node.ask(f"SET GLOBAL group_replication_consistency = '{consistency}'")
        sent = {parse_uid(app.send("consistent", number).id) for number in range(30)}
        assert sent <= _uids(group.nodes[group.primary()])
        if consistency == "AFTER":  # a commit has waited until every member has it
            assert all(sent <= _uids(node) for node in group.nodes)
        with Database(on_group.url).session() as session:
            part = topology(session)
        assert part.name == f"replication group, single primary, consistency {consistency}"
        assert ("waits until all members have applied it" in part.cost) is (consistency == "AFTER")
    finally:
        app.close()
        for node in group.nodes:
            node.ask("SET GLOBAL group_replication_consistency = 'EVENTUAL'")


def test_writers_on_all_members_of_a_multi_primary_group_lose_nothing(on_group: On) -> None:
    group = on_group.cluster
    group.nodes[group.primary()].ask("SELECT group_replication_switch_to_multi_primary_mode()")
    try:
        orders = ((0, 1, 2), (1, 2, 0), (2, 0, 1))
        apps = [on_group.app(group.url_of(*order), publish_timeout_s=60) for order in orders]
        apps[0].send("spread", -1)
        until(lambda: all(_knows(node, "spread") for node in group.nodes), 30, "all members have the topic", 0.1)
        sent: list[bytes] = []

        def send(number: int) -> None:
            for n in range(60):
                sent.append(parse_uid(apps[number].send("spread", n, partition=0).id))

        in_threads(3, send)
        with Database(group.url_of(1)).session() as session:
            part = topology(session)
        assert part.name.startswith("replication group, multi-primary") and "write to one" in part.cost
        for app in apps:
            app.close()
        with connect(group.nodes[2].admin_url) as connection, connection.cursor() as cursor:
            until(lambda: set(sent) <= _uids(group.nodes[2]), 30, "the third member has applied all", 0.2)
            cursor.execute("SELECT COUNT(*), COUNT(DISTINCT uid) FROM ems.ems_message WHERE uid IN %s", (sent,))
            assert cursor.fetchone() == (180, 180)
    finally:
        group.nodes[0].ask("SELECT group_replication_switch_to_single_primary_mode()")
        group.wait_whole()


def _knows(node: Node, topic: str) -> bool:
    return bool(node.ask(f"SELECT 1 FROM ems.ems_topic WHERE name = '{topic}'"))


def test_the_check_tells_what_makes_a_failover_long(on_group: On) -> None:
    primary = on_group.cluster.nodes[on_group.cluster.primary()]

    def found() -> list[tuple[str, str]]:
        findings = check(on_group.url, None, {})
        return [(one.severity, one.value) for one in findings if one.name == "group_replication_member_expel_timeout"]

    assert found() == [(Severity.WARNING, "5")]
    primary.ask("SET GLOBAL group_replication_member_expel_timeout = 0")
    assert found() == []
    primary.ask("SET GLOBAL group_replication_member_expel_timeout = 5")
