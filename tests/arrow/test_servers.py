"""Reading topics of several servers, and from replicas that are behind."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from emsworker import Ems
from emsworker.admin.placement import TopicMove
from emsworker.arrow import profile
from emsworker.arrow.frames import read_arrow
from emsworker.core.errors import ConfigError, StoreUnavailable, UnknownGroup, UnknownTopic
from emsworker.local import LocalDatabase
from emsworker.store.engine.database import Database
from tests.support.servers import connect, fresh_database
from tests.support.several import Several, several_databases
from tests.support.tables import migrate


@pytest.fixture
def several(server: LocalDatabase, monkeypatch: pytest.MonkeyPatch) -> Iterator[Several]:
    with several_databases(server, "main", "east") as several:
        monkeypatch.setenv("EMS_URL", several.url)
        monkeypatch.setenv("EMS_SERVERS", several.setting(east="orders.*"))
        app = Ems()
        app.send_many("orders.new", [f"order {n}" for n in range(3)])
        app.send_many("mail", ["letter"])
        app.streams.kept_by("orders.new").group(app.broker.topic("orders.new"), "billing")
        app.close()
        yield several


_STORED = "topic_id, `partition`, `offset`, uid, headers, body, size, born_at"


def values(**options: Any) -> list[tuple[str, str]]:
    table = read_arrow(columns=["topic", "value"], **options).read_all()
    return [(row["topic"], row["value"].decode()) for row in table.to_pylist()]


def test_each_topic_is_read_where_it_is_kept(several: Several) -> None:
    every = [("mail", "letter"), *(("orders.new", f"order {n}") for n in range(3))]
    assert sorted(values(subscribe=["orders.new", "mail"])) == every
    assert sorted(values(subscribe_pattern=".*")) == every
    assert values(subscribe=["mail", "orders.new"], limit=2)[:1] == [("mail", "letter")]
    assert sorted(
        values(assign={"orders.new": [0], "mail": [0]}, starting_offsets={"orders.new": {0: 2}, "mail": {0: 1}})
    ) == [("mail", "letter"), ("orders.new", "order 1"), ("orders.new", "order 2")]
    assert read_arrow(subscribe=["orders.new", "mail"], dataset="claims", group="billing").read_all().num_rows == 0
    with pytest.raises(UnknownTopic, match="gone"):
        read_arrow(subscribe=["orders.new", "gone"])
    with pytest.raises(UnknownGroup, match="nobody"):
        read_arrow(subscribe=["orders.new", "mail"], dataset="claims", group="nobody")
    with pytest.raises(ConfigError, match="option server = 'west': there is no such server"):
        read_arrow(subscribe="mail", server="west")


def test_a_topic_that_has_moved_is_read_on_its_server_and_its_history_by_name(several: Several) -> None:
    app = Ems()
    TopicMove(app, "mail", "east").run(timeout_s=20)
    app.send("mail", "later")
    app.close()
    assert values(subscribe="mail") == [("mail", "later")]
    assert values(subscribe="mail", server="main") == [("mail", "letter")]
    assert ("mail", "letter") not in values(subscribe_pattern=".*")


def test_a_server_that_is_away_matters_only_if_it_may_keep_a_topic(
    several: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = "west=mysql://nobody@127.0.0.1:1/x west.*"
    monkeypatch.setenv("EMS_SERVERS", f"{several.setting(east='orders.*')} {away}")
    monkeypatch.setenv("EMS_CONNECT_TIMEOUT_S", "1")
    monkeypatch.setattr(Database, "call", _impatient(Database.call))
    assert values(subscribe="mail") == [("mail", "letter")]
    with pytest.raises(StoreUnavailable):
        read_arrow(subscribe_pattern=".*")
    with pytest.raises(StoreUnavailable):
        read_arrow(subscribe="west.0")


def _impatient(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, work, timeout_s=None: call(self, work, 1.0)


def test_a_profile_names_servers_and_replicas(
    several: Several, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "profiles.ini"
    servers = several.setting(east="orders.*")
    path.write_text(f"[shop]\nurl = {several.url}\nservers = {servers}\nread_url = {several.url}\n")
    for name in ("EMS_URL", "EMS_SERVERS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("EMS_PROFILES", str(path))
    assert len(values(profile="shop", subscribe=["orders.new", "mail"])) == 4


def test_a_replica_that_is_behind_what_was_planned_is_waited_for(
    server: LocalDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two databases stand for two replicas: the read is planned on one, and read on another with less."""
    with fresh_database(server) as ahead, fresh_database(server) as behind:
        for url in (ahead, behind):
            Database(url).call(migrate)
            app = Ems(url=url)
            app.send_many("orders", [str(n) for n in range(3)], partition=0)
            app.close()
        with connect(behind, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE later AS SELECT {_STORED} FROM ems_message WHERE `offset` = 2")
            cursor.execute("DELETE FROM ems_message WHERE `offset` = 2")  # it has not been applied yet
        monkeypatch.setenv("EMS_URL", ahead)
        monkeypatch.setenv("EMS_READ_URL", ahead)
        planned = read_arrow(subscribe="orders", columns=["value"])
        monkeypatch.setenv("EMS_READ_URL", behind)
        monkeypatch.setattr(profile, "_REPLICA_S", 0.3)
        with pytest.raises(StoreUnavailable, match="has no offset 2 of partition 0, which was there when"):
            planned.read_all()
        monkeypatch.setattr(profile, "_REPLICA_S", 30.0)
        monkeypatch.setenv("EMS_READ_URL", ahead)
        planned = read_arrow(subscribe="orders", columns=["value"])
        monkeypatch.setenv("EMS_READ_URL", behind)
        timer = threading.Timer(0.5, _apply, [behind])
        timer.start()
        assert [row["value"] for row in planned.read_all().to_pylist()] == [b"0", b"1", b"2"]
        timer.join()


def _apply(url: str) -> None:
    with connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO ems_message ({_STORED}) SELECT * FROM later")
