"""Several servers in the URL: the writable one is found, before and after a change of roles."""

import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from emsworker import Ems
from emsworker.core.errors import StoreUnavailable
from emsworker.core.ids import parse_uid
from emsworker.local import LocalDatabase as Server
from emsworker.store.engine.database import Database
from emsworker.store.engine.sql import Sql
from emsworker.store.topics import create_topic
from tests.support.machine import machine_s
from tests.support.prepared import PreparedDatabase
from tests.support.proxy import proxied
from tests.support.servers import connect
from tests.support.tables import migrate
from tests.support.waiting import until


class Pair:
    """Two servers with a stream each, as replicas of each other would have it, and who may be written to."""

    def __init__(self, servers: list[Server]) -> None:
        self.servers = servers
        for server in servers:
            with Database(server.url).session() as session:
                migrate(session)
                create_topic(session, "t")
        self.share_password()
        first, second = (re.search(r"@([^/]+)/", server.url)[1] for server in servers)  # type: ignore[index]
        self.url = servers[0].url.replace(first, f"{first},{second}")
        self.promote(0)

    def share_password(self) -> None:
        """One account on both, as replication makes it."""
        one = urlsplit(self.servers[0].url)
        with connect(self.servers[1].admin_url) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT user, host FROM mysql.user WHERE user = %s", (one.username,))
            for account in cursor.fetchall():
                cursor.execute("ALTER USER %s@%s IDENTIFIED BY %s", (*account, unquote(one.password or "")))

    def promote(self, number: int) -> None:
        self.read_only(1 - number, "ON")
        self.read_only(number, "OFF")

    def read_only(self, number: int, value: str) -> None:
        with connect(self.servers[number].admin_url) as connection, connection.cursor() as cursor:
            cursor.execute(f"SET GLOBAL read_only = {value}")

    def uids(self, number: int) -> list[bytes]:
        with connect(self.servers[number].admin_url) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT uid FROM ems.ems_message WHERE `offset` > 0")
            return [row[0] for row in cursor.fetchall()]


@contextmanager
def pair_of(flavor: str, folder: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        servers = []
        for name in ("one", "two"):
            server = PreparedDatabase(folder / name, flavor)  # type: ignore[arg-type]
            stack.callback(server.kill)
            server.start(120)
            servers.append(server)
        yield Pair(servers)


@pytest.fixture
def pair(server: Server, tmp_path: Path) -> Iterator[Pair]:
    with pair_of(server.flavor, tmp_path) as pair:
        yield pair


def test_sends_and_reads_follow_the_writable_server(pair: Pair) -> None:
    app = Ems("test", url=pair.url, publish_timeout_s=15)
    app.send("t", 0)
    assert [len(pair.uids(0)), len(pair.uids(1))] == [1, 0]
    with Database(pair.url).session() as reader:
        port = "SELECT @@port"
        first = reader.rows(port)
        pair.promote(1)
        started = machine_s()
        app.send("t", 1)
        assert machine_s() - started < 5
        assert [len(pair.uids(0)), len(pair.uids(1))] == [1, 1]
        until(lambda: reader.rows(port) != first, 5, "who only reads notices too")

    confirmed: list[bytes] = []
    stopped = threading.Event()

    def work() -> None:
        while not stopped.is_set():
            confirmed.append(parse_uid(app.send("t", 2).id))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        until(lambda: len(confirmed) > 20, 10, "it sends")
        pair.read_only(0, "OFF")
        pair.servers[1].kill()
        before = len(confirmed)
        until(lambda: len(confirmed) > before + 20, 5, "it goes on with the other")
    finally:
        stopped.set()
        thread.join(20)
    pair.servers[1].start(120)
    pair.share_password()
    kept = pair.uids(0) + pair.uids(1)
    assert set(confirmed) <= set(kept), "none is lost"
    app.close()

    pair.read_only(0, "ON")
    pair.read_only(1, "ON")
    nobody = Ems("test", url=pair.url, publish_timeout_s=1)
    with pytest.raises(StoreUnavailable, match=r"no server can be written to: .* is read-only; .* is read-only"):
        nobody.send("t", 3)


def test_a_router_that_leads_to_a_frozen_member_first_is_asked_again(server: Server) -> None:
    with proxied(server.url) as (proxy, url):
        proxy.mute = 2
        began = machine_s()
        with Database(url).session() as session:
            assert session.rows(Sql("SELECT 1")) == ((1,),)
        assert not proxy.mute and machine_s() - began < 8, "two seconds for each of the first"
        proxy.mute = 99
        began = machine_s()
        with pytest.raises(StoreUnavailable, match="timed out"):
            Database(url, connect_timeout_s=4, call_timeout_s=1).call(lambda session: session.rows(Sql("SELECT 1")))
        assert machine_s() - began < 8, "no longer in all than one attempt may take"
        assert proxy.mute <= 97
