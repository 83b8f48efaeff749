"""Retirement of a server: everything moves away from it, and whatever still needs it is named."""

from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from emsworker import Ems
from emsworker.admin import Admin
from emsworker.admin.retirement import Retirement
from emsworker.beat.forwarder import forwarders
from emsworker.core.errors import ConfigError, StoreUnavailable
from emsworker.core.model import TopicKind
from emsworker.local import LocalDatabase
from emsworker.store.topics import create_topic, get_topic
from tests.store.test_placement import rows_of
from tests.support.several import Several, several_databases
from tests.support.waiting import until


@pytest.fixture
def several(server: LocalDatabase) -> Iterator[Several]:
    with several_databases(server, "main", "east", "west") as several:
        with closing(Ems(url=several.url, servers=several.setting(east="orders.*"))) as before:
            before.send("orders.new", 1)
            before.streams.kept_by("orders.new").group(before.broker.topic("orders.new"), "billing")
            before.send("orders.old", 2, dedup_key="k")
        yield several


@pytest.fixture
def app(several: Several) -> Iterator[Ems]:
    with closing(Ems(url=several.url, servers=several.setting(west="orders.*"))) as app:
        yield app


def _finish(several: Several, topic: str, group: str) -> None:
    Admin(several.database("east")).reset_group(topic, group, "latest")


def test_everything_moves_and_what_needs_the_server_is_named(several: Several, app: Ems) -> None:
    assert Retirement(app, "east").look().topics == {"orders.new": "west", "orders.old": "west"}
    assert app.streams.locate("orders.new")[-1] == "east", "a look changes nothing"
    left = Retirement(app, "east").run(timeout_s=0)
    assert left.topics == {} and left.needed == left.passing
    assert left.needed == ("group 'billing' of topic 'orders.new' has 1 message left on 'east'",)
    with closing(Ems(url=several.url, servers=several.setting(west="orders.*"))) as late:
        assert [late.streams.locate(topic)[-1] for topic in ("orders.new", "orders.old")] == ["west", "west"]
    _finish(several, "orders.new", "billing")
    left = Retirement(app, "east").run(timeout_s=20)
    assert left.needed == ()
    assert not Admin(several.database("west")).groups("orders.new")[0][1].paused, "it goes on where it stopped"
    key, unread = left.lost
    assert key.startswith("deduplication keys; the last one, of topic 'orders.old', counts until 20")
    assert unread == "messages of 1 topic that no group was there to run: orders.old"
    rows_of(several.urls["east"], "UPDATE ems_dedup SET look_at = NOW(6)")
    Admin(several.database("east")).delete_topic("orders.old")
    assert Retirement(app, "east").run(timeout_s=20) == Retirement(app, "east").look()
    assert Retirement(app, "east").look().lost == ()
    without = f"west={several.urls['west']}"
    with closing(Ems(url=several.url, servers=without)) as after:
        after.send("orders.new", 3)
        after.send("orders.old", 4)


def test_live_processes_pointers_and_outboxes_are_named(several: Several, app: Ems) -> None:
    _finish(several, "orders.new", "billing")
    with app.transaction() as tx:
        tx.send("orders.new", 5)
    several.database("main").call(lambda session: create_topic(session, "gone", server="east"))
    with app.consumer("mail", "readers"):
        left = Retirement(app, "east", to="west").run(timeout_s=0)
    kept = "SELECT name FROM ems_topic WHERE server IS NULL ORDER BY name"
    assert rows_of(several.urls["west"], kept) == [("orders.new",), ("orders.old",)]
    pointer, process, outbox = left.needed
    assert "server 'main' says that 1 topic is on 'east': gone" in pointer
    assert process.startswith("1 live process has 'east' in EMS_SERVERS: ") and "on 'main'" in process
    assert outbox.startswith("messages wait in the outbox of server 'main' to be forwarded, of 1 topic: orders.new")


def test_messages_that_are_forwarded_are_waited_for(several: Several, app: Ems) -> None:
    _finish(several, "orders.new", "billing")
    with app.transaction() as tx:
        tx.send("orders.new", 5)
    left = Retirement(app, "east").run(timeout_s=0)
    assert [text.partition(" of server")[0] for text in left.passing] == ["messages wait in the outbox"]
    threads = forwarders(app.settings, "main", lambda name, error: None)
    for thread in threads:
        thread.start()
    try:
        assert Retirement(app, "east").run(timeout_s=30).passing == ()
        until(lambda: _beats(app) == 2, 10, "the threads lead")
        for thread in threads:
            thread.stop()
    finally:
        for thread in threads:
            thread.stop()
            thread.join(10)
    assert Retirement(app, "east").look().needed == ()


def _beats(app: Ems) -> int:
    """The live forwarders of main, of which the one to east shows that a beat knows it."""
    (line,) = Retirement(app, "east").look().needed
    assert "1 live process has 'east' in EMS_SERVERS: the beat of " in line
    return len(rows_of(app.streams.servers["main"].url, "SELECT 1 FROM ems_leader WHERE service LIKE 'forward:%'"))


def test_what_cannot_be_moved_is_named(several: Several, app: Ems) -> None:
    several.database("east").call(lambda session: create_topic(session, "news", kind=TopicKind.BROADCAST))
    rows_of(several.urls["east"], "INSERT INTO ems_publish (topic, body) VALUES ('orders.new', '1')")
    Admin(several.database("east")).alarms.create("behind", on="lag", above=5)
    left = Retirement(app, "east").run(timeout_s=0)
    assert list(left.topics) == ["news"]
    assert left.needed[0].startswith("topic 'news' is a broadcast topic, which cannot be moved")
    assert any(text.startswith("1 row of ems_publish is not sent yet") for text in left.passing)
    assert any(text.startswith("alarm rules: behind") for text in left.lost)


def test_a_move_that_was_interrupted_is_finished(several: Several, app: Ems) -> None:
    from tests.store.test_placement import _close

    several.database("west").call(lambda session: create_topic(session, "orders.new", server="east"))
    _close(several, "east", "west")
    _finish(several, "orders.new", "billing")
    assert Retirement(app, "east").run(timeout_s=20).needed == ()
    topic = several.database("west").call(lambda session: get_topic(session, "orders.new"))
    assert topic is not None and topic.server is None


def test_a_server_is_not_retired_while_another_is_away(several: Several) -> None:
    url = urlsplit(several.urls["west"])
    away = f"west=mysql://{url.username}:{url.password}@127.0.0.1:1{url.path}"
    with closing(Ems(url=several.url, servers=f"east={several.urls['east']} {away}")) as app:
        with pytest.raises(StoreUnavailable, match="because server 'west' is away"):
            Retirement(app, "east").run(timeout_s=0)
        assert app.streams.locate("orders.new")[-1] == "east"


@pytest.mark.parametrize(
    ("name", "to", "text"),
    [
        ("main", None, "is the server of EMS_URL"),
        ("north", None, "names no such server"),
        ("east", "east", "is the server that is to be retired"),
        ("east", "north", "names no such server"),
        ("west", None, "topics are still created on 'west' by these patterns"),
    ],
)
def test_what_cannot_be_retired_is_refused(app: Ems, name: str, to: str | None, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Retirement(app, name, to)
