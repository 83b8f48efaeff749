"""Topics on several servers: where they are created, sending to them, also in a transaction, and results."""

import socket
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from emsworker import Ems, Outgoing, Receipt
from emsworker.admin import Admin
from emsworker.admin.placement import TopicMove
from emsworker.beat.forwarder import forwarders
from emsworker.beat.relay import Relay
from emsworker.broker.placed import PlacedBroker
from emsworker.core.errors import ConfigError, MoveUnfinished, StoreUnavailable, TopicInUse, TopicRuleError
from emsworker.core.model import NewMessage
from emsworker.core.process.clock import ticks
from emsworker.local import LocalDatabase
from emsworker.store.engine.database import Database
from emsworker.store.stream import forwards
from emsworker.store.stream.guards import last_move
from emsworker.store.topics import get_topic, keep_at
from tests.support.servers import connect, set_globals
from tests.support.several import Several, several_databases
from tests.support.waiting import until


@pytest.fixture
def several(server: LocalDatabase) -> Iterator[Several]:
    with several_databases(server, "main", "orders", "mail") as several:
        yield several


@pytest.fixture
def app(several: Several) -> Iterator[Ems]:
    app = Ems(url=several.url, servers=several.setting(orders="orders.* invoices", mail="mail*"))
    yield app
    app.close()


def _bodies(several: Several, name: str, topic: str) -> list[bytes]:
    statement = "SELECT m.body FROM ems_message m JOIN ems_topic t ON t.id = m.topic_id AND m.`offset` > 0 WHERE t.name = %s ORDER BY m.`offset`"
    with connect(several.urls[name]) as connection, connection.cursor() as cursor:
        cursor.execute(statement, (topic,))
        return [row[0] for row in cursor.fetchall()]


def rows_of(url: str, statement: str) -> list[tuple[Any, ...]]:
    with connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def _soon(look: Callable[[], object]) -> None:
    until(look, 20, "the messages have arrived")


def _forwarding(app: Ems, source: str) -> list[Any]:
    threads = forwarders(app.settings, source, lambda name, error: None)
    for thread in threads:
        thread.start()
    return threads


@pytest.fixture
def forwarding(app: Ems) -> Iterator[Callable[[str], None]]:
    """Start the threads that forward from a server."""
    threads: list[Any] = []
    yield lambda source: threads.extend(_forwarding(app, source))
    for thread in threads:
        thread.stop()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_topics_are_created_where_the_patterns_say(several: Several, app: Ems) -> None:
    for topic in ("orders.new", "invoices", "mailing", "other"):
        receipt = app.send(topic, topic)
        assert receipt.topic == topic and receipt.offset == 1
    assert _bodies(several, "orders", "orders.new") == [b"orders.new"]
    assert _bodies(several, "orders", "invoices") == [b"invoices"]
    assert _bodies(several, "mail", "mailing") == [b"mailing"]
    assert _bodies(several, "main", "other") == [b"other"]


def test_a_topic_from_before_a_server_was_added_stays_where_it_is(several: Several) -> None:
    before = Ems(url=several.url)
    before.send("orders.new", "first")
    app = Ems(url=several.url, servers=several.setting(orders="orders.*"))
    app.send("orders.new", "second")
    assert _bodies(several, "main", "orders.new") == [b"first", b"second"]
    pointer = several.database("orders").call(lambda session: get_topic(session, "orders.new"))
    assert pointer is not None and pointer.server == "main"
    before.close()
    app.close()


def test_a_transaction_sends_to_another_server_once(
    several: Several, app: Ems, forwarding: Callable[[str], None]
) -> None:
    with app.transaction() as tx:
        tx.send("orders.new", "kept")
        tx.send("other", "here")
    with pytest.raises(ZeroDivisionError), app.transaction() as tx:
        tx.send("orders.new", "never")
        raise ZeroDivisionError
    assert _bodies(several, "orders", "orders.new") == []
    forwarding("main")
    forwarding("main")  # a second process does the same
    _soon(lambda: _bodies(several, "orders", "orders.new") == [b"kept"])
    _soon(lambda: not rows_of(several.url, "SELECT uid FROM ems_outbox"))
    assert _bodies(several, "main", "other") == [b"here"]
    with app.transaction(server="orders") as tx:
        tx.send("orders.new", "local")
    # One server has all the databases, so the transaction counts as one on main, and the message is forwarded.
    _soon(lambda: _bodies(several, "orders", "orders.new") == [b"kept", b"local"])


def test_a_message_that_is_offered_again_is_not_accepted_again(several: Several, app: Ems) -> None:
    app.send("orders.new", "before")
    with app.transaction() as tx:
        tx.send("orders.new", "kept")
    messages = _waiting(several, "main", "orders.new")
    _accept(app, "orders", "orders.new", messages)
    with connect(several.urls["orders"], autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM ems_message WHERE `offset` > 0")  # it was run, and retention has deleted it
    _accept(app, "orders", "orders.new", messages)
    assert _bodies(several, "orders", "orders.new") == []


@pytest.mark.parametrize("stays", [("orders", "mail"), ("orders", "main"), ("orders", "mail", "orders")])
def test_what_was_accepted_before_a_move_is_not_accepted_after_it(
    several: Several, app: Ems, forwarding: Callable[[str], None], stays: tuple[str, ...]
) -> None:
    """The forwarder dies between the acceptance and the deletion, and the topic moves before the next one offers."""
    with app.transaction() as tx:
        tx.send("orders.new", "kept")
    for stay in stays[1:-1]:
        _move(app, "orders.new", stay)
    messages = _waiting(several, "main", "orders.new")
    _accept(app, stays[-2], "orders.new", messages)
    _move(app, "orders.new", stays[-1])
    forwarding("main")
    _soon(lambda: not rows_of(several.url, "SELECT uid FROM ems_outbox"))
    for name in dict.fromkeys(stays):
        with several.database(name).session() as session:
            Relay()(session, app.settings)
    assert {name: _bodies(several, name, "orders.new") for name in set(stays)} == {
        name: [b"kept"] if name == stays[-2] else [] for name in set(stays)
    }


def test_what_waits_stays_when_its_topic_comes_to_the_server_of_the_outbox(several: Several, app: Ems) -> None:
    with app.transaction() as tx:
        tx.send("orders.new", "later", countdown=3600)
    messages = _waiting(several, "main", "orders.new")
    orders = app.streams.server("orders")
    kept = orders.kept_topic("orders.new")
    assert kept is not None
    _move(app, "orders.new", "main")  # between the forwarder's reading and its handing over
    assert not orders.accept(kept, messages)
    forwarder = next(one for one in forwarders(app.settings, "main", lambda *_: None) if "orders" in one.name)
    assert forwarder._forward_all() == 0
    assert len(rows_of(several.url, "SELECT uid FROM ems_outbox")) == 1, "its relay sends it"


@pytest.mark.parametrize("stays", [("mail",), ("mail", "orders"), ("main", "orders"), ("mail", "main", "mail")])
def test_what_waits_goes_along_with_its_topic(
    several: Several, app: Ems, forwarding: Callable[[str], None], stays: tuple[str, ...]
) -> None:
    with app.transaction() as tx:
        tx.send("orders.new", "later", countdown=3600)
    for name in several.urls:
        forwarding(name)
    for stay in ("orders", *stays):
        if stay != "orders" or len(stays) > 1:
            _move(app, "orders.new", stay)
        _soon(lambda stay=stay: [name for name in several.urls if _waiting(several, name, "orders.new")] == [stay])


def test_a_move_that_was_interrupted_is_finished_and_no_other_one_is_begun(several: Several, app: Ems) -> None:
    app.send("orders.new", "before")
    for stay in ("mail", "main", "orders"):  # every server has a row of it
        _move(app, "orders.new", stay)
    _close(several, "orders", "mail")
    for name in ("main", "orders"):
        with pytest.raises(ConfigError, match="is being moved from server 'orders' to 'mail'; finish that first"):
            _move(app, "orders.new", name)
    _move(app, "orders.new", "mail")
    app.send("orders.new", "after")
    assert [_bodies(several, name, "orders.new") for name in ("orders", "mail")] == [[b"before"], [b"after"]]


def _close(several: Several, source: str, target: str) -> None:
    """Do the first half of a move."""
    with several.database(source).session() as session:
        topic = get_topic(session, "orders.new")
        assert topic is not None
        last = last_move(session, topic.id)
        keep_at(session, topic, target, move=last + 1, last_move=last)


def _accept(app: Ems, server: str, topic: str, messages: list[NewMessage]) -> None:
    broker = app.streams.server(server)
    kept = broker.kept_topic(topic)
    assert kept is not None and broker.accept(kept, messages)


def _waiting(several: Several, name: str, topic: str) -> list[NewMessage]:
    database = several.database(name)
    found = database.call(lambda session: get_topic(session, topic))
    return [] if found is None else database.call(lambda session: forwards.read(session, found.id, 10, 1 << 20))


def test_a_connection_of_the_caller_is_asked_where_it_is(
    several: Several, app: Ems, forwarding: Callable[[str], None]
) -> None:
    app.send("orders.new", "first")
    with connect(several.urls["orders"]) as connection:
        app.send("orders.new", "own", transaction=connection)
        app.send("mailing", "to mail", transaction=connection)
        connection.commit()
    forwarding("main")  # one server has both databases, so the transaction is on either
    forwarding("orders")
    _soon(lambda: _bodies(several, "orders", "orders.new") == [b"first", b"own"])
    _soon(lambda: _bodies(several, "mail", "mailing") == [b"to mail"])


def test_delays_go_along(several: Several, app: Ems, forwarding: Callable[[str], None]) -> None:
    with app.transaction() as tx:
        tx.send("orders.new", "later", countdown=3600)
    forwarding("main")
    left = "SELECT TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), due_at) FROM ems_outbox"
    _soon(lambda: rows_of(several.urls["orders"], left))
    assert 3500 < rows_of(several.urls["orders"], left)[0][0] <= 3600
    _soon(lambda: not rows_of(several.url, left))


def test_a_dedup_key_counts_on_one_server_only(app: Ems) -> None:
    with pytest.raises(TopicRuleError, match="kept on the server 'orders'"), app.transaction() as tx:
        tx.send("orders.new", "x", dedup_key="k")


def _move(app: Ems, topic: str, target: str) -> None:
    assert TopicMove(app, topic, target).run(timeout_s=20).target == target


def test_a_dedup_key_that_was_used_before_a_move_is_still_taken(several: Several, app: Ems) -> None:
    first = app.send("parcels", 1, dedup_key="a")
    _move(app, "parcels", "orders")
    again = app.send("parcels", 2, dedup_key="a")
    assert (again.id, again.created) == (first.id, False)
    app.bind_to_server("orders")  # as a worker's child; one server has all the databases, so a connection is on any
    with app.transaction() as tx:
        within = tx.send("parcels", 3, dedup_key="a")
        other = tx.send("parcels", 4, dedup_key="b")
    assert (within.id, within.created, other.created) == (first.id, False, True)
    both = app.send_many("parcels", [Outgoing("parcels", 5, dedup_key=key) for key in ("a", "b", "c")])
    assert [one.created for one in both] == [False, False, True] and both[1].id == other.id
    _soon(lambda: _bodies(several, "orders", "parcels") == [b"4", b"5"])
    assert _bodies(several, "main", "parcels") == [b"1"]
    rows_of(several.url, "UPDATE ems_dedup SET expires_at = NOW(6) - INTERVAL 1 SECOND")
    assert not app.send("parcels", 6, dedup_key="a").created, "no group has finished the first one"
    rows_of(several.url, "DELETE FROM ems_message WHERE `offset` > 0")  # finished by all, and deleted by retention
    assert app.send("parcels", 7, dedup_key="a").created


def test_a_move_says_where_messages_stay_that_no_group_runs(app: Ems) -> None:
    app.send("parcels", 1)
    assert TopicMove(app, "parcels", "orders").run(timeout_s=20).unread == ("main",)
    app.publisher.send("mailing", [[], {}], headers={})
    stream = app.streams.kept_by("mailing")
    stream.group(app.broker.topic("mailing"), "readers")
    Admin(stream.database).reset_group("mailing", "readers", "latest")
    assert TopicMove(app, "mailing", "orders").run(timeout_s=20).unread == ()


def test_alarm_rules_and_silences_go_along_with_their_topic(several: Several, app: Ems) -> None:
    app.send("mail", 1)
    old, new = Admin(app.streams.server("mail").database).alarms, Admin(app.streams.server("orders").database).alarms
    own = old.create("late", on="oldest", above=60, topic="mail", webhook="https://example.org/x")
    old.create("taken", on="lag", topic="mail")
    new.create("taken", on="dead")
    old.create("backlog", on="lag")
    old.create("firing", on="lag", topic="mail")
    old.create("other", on="lag", topic="mail.other")
    old.create("room", on="disk_full")
    old.silence("late", for_s=600, topic="mail", reason="we move")
    fires = "INSERT INTO ems_alarm (rule, topic, group_name, alarm_id, state, value, since) VALUES ('firing', 'mail', 'g', 'x', 'firing', 1, NOW(6))"
    rows_of(several.urls["mail"], fires)

    assert TopicMove(app, "mail", "orders").run().alarms == {"mail": ("backlog", "firing", "taken")}
    rules = {one.rule.name: one.rule for one in new.list()}
    assert {*rules} == {"late", "firing", "taken"} and rules["late"] == own
    assert [one.rule.name for one in old.list()] == ["backlog", "firing", "other", "room", "taken"]
    (silence,) = new.silences()
    assert (silence.rule, silence.topic, silence.reason) == ("late", "mail", "we move")

    rows_of(several.urls["mail"], "DELETE FROM ems_alarm")
    new.create("backlog", on="lag")
    assert TopicMove(app, "mail", "orders").run().alarms == {"mail": ("taken",)}, "given again, it finishes"
    assert len(new.silences()) == 1 and len(new.list()) == 4


def test_what_was_sent_elsewhere_is_known_when_a_topic_is_back(several: Several, app: Ems) -> None:
    """Ids and dedup keys of each stay of a topic that moves away, back, and away again."""
    late = Ems(url=several.url, servers=several.setting(orders="orders.*"))
    late.send("parcels", -1)  # it knows the topic where it was first
    sent: list[Receipt] = []
    stays = ("main", "orders", "main", "orders")
    for stay, server in enumerate(stays):
        if stay:
            _move(app, "parcels", server)
        fresh = Ems(url=several.url, servers=several.setting(orders="orders.*"))
        for sender in (fresh, late, app):
            sender.bind_to_server(server)
            for before, receipt in enumerate(sent):
                key = f"k{before}"
                again = [sender.send("parcels", 99, dedup_key=key), sender.send("parcels", 99, uid=receipt.id)]
                with sender.transaction() as tx:
                    again.append(tx.send("parcels", 99, dedup_key=key))
                    within = tx.send("parcels", 99, uid=receipt.id)
                assert [(one.id, one.created) for one in again] == [(receipt.id, False)] * 3, (stay, before)
                # On the same server it is the relay that finds the message.
                assert (within.id, within.created) == (receipt.id, stays[before] == server), (stay, before)
        fresh.close()
        sent.append(app.send("parcels", stay, uid=str(uuid.uuid4()), dedup_key=f"k{stay}"))
        assert sent[-1].created
        with Database(several.urls[server]).session() as session:
            while rows_of(several.urls[server], "SELECT 1 FROM ems_outbox"):
                Relay()(session, app.settings)
    assert sorted(_bodies(several, "main", "parcels")) == [b"-1", b"0", b"2"]
    assert sorted(_bodies(several, "orders", "parcels")) == [b"1", b"3"]
    late.close()


def test_no_dedup_key_is_taken_where_a_topic_has_moved_away(several: Several, app: Ems) -> None:
    app.send("parcels", 0)
    late = Ems(url=several.url, servers=several.setting(orders="orders.*"))
    late.send("parcels", 1, dedup_key="a")  # it has looked the topic up, and remembers for a second where it is
    with ThreadPoolExecutor(1) as pool:
        with connect(several.url) as connection:
            held = app.send("parcels", 2, dedup_key="b", transaction=connection)
            moving = pool.submit(_move, app, "parcels", "orders")
            with pytest.raises(TimeoutError):
                moving.result(1.0)  # the move waits for the transaction
            connection.commit()
        moving.result(60)
    assert isinstance(late.broker, PlacedBroker)
    late.broker._known = {topic: (chain, ticks() + 60) for topic, (chain, _) in late.broker._known.items()}
    assert late.send("parcels", 3, dedup_key="c").created
    assert {row[0] for row in rows_of(several.url, "SELECT `key` FROM ems_dedup")} == {b"a", b"b"}
    assert {row[0] for row in rows_of(several.urls["orders"], "SELECT `key` FROM ems_dedup")} == {b"c"}
    for one in (app, late):
        again = one.send("parcels", 4, dedup_key="b")
        assert (again.id, again.created) == (held.id, False)
    late.close()


def test_a_message_of_any_server_is_cancelled(several: Several, app: Ems) -> None:
    assert app.cancel(app.send("orders.new", "x"))
    assert app.cancel(app.send("mailing", "x").id)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("orders", "must begin with a server"),
        ("mysql://u@h/d orders", "has no name before it"),
        ("main=mysql://u@h/d", "is the server of the setting url"),
        ("A=mysql://u@h/d", "is not a name of a server"),
        ("a=mysql://u@h/d a=mysql://u@h/d", "twice"),
        ("a=mysql://user:secret@h", "names no database"),
    ],
)
def test_a_wrong_setting_is_named(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Ems(url="mysql://u@h/d", servers=text)
    assert reason in str(caught.value) and "secret" not in str(caught.value)


@pytest.mark.parametrize("fate", ["dead", "silent", "unnamed"])
def test_nobody_depends_on_a_server_between_two_moves(several: Several, app: Ems, fate: str) -> None:
    app.send("parcels", 1)
    _move(app, "parcels", "orders")
    _move(app, "parcels", "mail")
    pointer = several.database("main").call(lambda session: get_topic(session, "parcels"))
    assert pointer is not None and pointer.server == "mail"
    with _out_of_reach(several, "orders", fate) as servers:
        late = Ems(url=several.url, servers=servers)
        late.send("parcels", 2)
        late.close()
    assert _bodies(several, "mail", "parcels") == [b"2"]


@pytest.mark.parametrize("fate", ["dead", "silent", "unnamed"])
def test_a_pointer_to_a_server_out_of_reach_is_passed_by_in_seconds(several: Several, app: Ems, fate: str) -> None:
    """The server was away when the topic moved on, so that nobody could tell main."""
    app.send("parcels", 1)
    app.send("letters", 1)
    for topic in ("parcels", "letters"):
        _move(app, topic, "orders")
    _move(app, "parcels", "mail")
    rows_of(several.url, "UPDATE ems_topic SET server = 'orders' WHERE name = 'parcels'")
    with _out_of_reach(several, "orders", fate) as servers:
        late = Ems(url=several.url, servers=servers, publish_timeout_s=25)
        began = ticks()
        late.send("parcels", 2)
        assert ticks() - began < 20, "it is below the timeout of a send"
        error: type[Exception] = StoreUnavailable
        text = "could not be reached"
        if fate == "unnamed":
            error = ConfigError
            text = "server 'main' says that it is on 'orders', which the setting `servers` does not"
        with pytest.raises(error, match=text):
            late.send("letters", 2)
        late.close()
    assert _bodies(several, "mail", "parcels") == [b"2"]


@contextmanager
def _out_of_reach(several: Several, name: str, fate: str) -> Iterator[str]:
    """Yield the setting of an app for which a server refuses connections, never answers, or has no name any more."""
    lines = {line.partition("=")[0]: line for line in several.setting().splitlines()}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        if fate == "dead":
            silent.close()
        url = urlsplit(several.urls[name])
        lines[name] = f"{name}=mysql://{url.username}:{url.password}@127.0.0.1:{port}{url.path}"
        if fate == "unnamed":
            del lines[name]
        yield "\n".join(lines.values())


def test_a_group_begins_only_when_all_former_servers_have_nothing_left(several: Several, app: Ems) -> None:
    main, orders, mail = (app.streams.server(name) for name in several.urls)
    topic = app.broker.topic("parcels")
    main.group(topic, "readers")
    _move(app, "parcels", "orders")
    app.send("parcels", 1)
    for _ in range(2):  # main, which has nothing left, is asked too
        with pytest.raises(MoveUnfinished, match="left on 'orders': readers 1"):
            TopicMove(app, "parcels", "mail").run(timeout_s=0)
        assert Admin(mail.database).groups("parcels")[0][1].paused
    Admin(orders.database).reset_group("parcels", "readers", "latest")
    _move(app, "parcels", "mail")
    assert not Admin(mail.database).groups("parcels")[0][1].paused


def test_no_topic_moves_to_a_server_that_live_processes_do_not_know(several: Several, app: Ems) -> None:
    app.send("parcels", 1)
    before = Ems(url=several.url)
    with before.consumer("parcels", "old"):
        with pytest.raises(TopicInUse, match="1 live process would not find topic 'parcels' on server 'orders'"):
            TopicMove(app, "parcels", "orders").run(timeout_s=0)
        assert app.streams.locate("parcels")[-1] == "main"
        with pytest.raises(MoveUnfinished):
            TopicMove(app, "parcels", "orders").run(timeout_s=0, force=True)
    before.close()
    with app.consumer("letters", "new"):
        _move(app, "letters", "orders")


@pytest.mark.parametrize("fate", ["dead", "silent"])
def test_a_move_does_not_wait_for_a_server_that_has_nothing_to_do_with_it(several: Several, fate: str) -> None:
    app = Ems(url=several.url, servers=several.setting())
    for topic in ("parcels", "letters"):
        app.send(topic, 1)
    _move(app, "letters", "mail")
    _move(app, "letters", "main")  # so that mail has a row of it
    with _out_of_reach(several, "mail", fate) as servers:
        now = Ems(url=several.url, servers=servers)
        for topic in ("parcels", "letters"):
            began = ticks()
            moved = TopicMove(now, topic, "orders").run(timeout_s=5)
            assert (moved.sources[-1:], moved.untold) == (("main",), ("mail",)) and ticks() - began < 15
            now.send(topic, 2)
            assert _bodies(several, "orders", topic) == [b"2"]
        for target, error in (("mail", "could not be reached"), ("main", "may have sent them already")):
            if target == "main":  # mail had the topic later than main
                _move(app, "letters", "mail")
                _move(app, "letters", "orders")
                with app.transaction() as tx:
                    tx.send("letters", 3)
            with pytest.raises(StoreUnavailable, match=error):
                TopicMove(now, "letters", target).run(timeout_s=5)
            assert app.streams.locate("letters")[-1] == "orders"
        now.close()
    assert TopicMove(app, "letters", "orders").run(timeout_s=5).untold == ()
    told = several.database("mail").call(lambda session: get_topic(session, "letters"))
    assert told is not None and told.server == "orders"
    app.close()


def test_a_topic_is_not_moved_while_the_server_is_away_that_may_keep_it(several: Several, app: Ems) -> None:
    app.send("parcels", 1)
    _move(app, "parcels", "mail")
    with _out_of_reach(several, "mail", "dead") as servers:
        now = Ems(url=several.url, servers=servers)
        with pytest.raises(StoreUnavailable, match="keeps topic 'parcels', and server 'mail' may"):
            TopicMove(now, "parcels", "orders").run(timeout_s=5)
        now.close()


def test_a_move_that_was_interrupted_is_finished_while_a_third_server_is_away(several: Several, app: Ems) -> None:
    app.send("orders.new", "before")
    _close(several, "orders", "main")
    with _out_of_reach(several, "mail", "dead") as servers:
        now = Ems(url=several.url, servers=servers)
        _move(now, "orders.new", "main")
        now.send("orders.new", "after")
        now.close()
    assert _bodies(several, "main", "orders.new") == [b"after"]


def test_groups_do_not_begin_while_the_server_is_away_on_which_they_have_work(several: Several, app: Ems) -> None:
    app.streams.server("main").group(app.broker.topic("parcels"), "readers")
    app.send("parcels", 1)
    with pytest.raises(MoveUnfinished):
        TopicMove(app, "parcels", "mail").run(timeout_s=0)
    app.send("parcels", 2)
    with (
        _out_of_reach(several, "orders", "dead") as servers,  # it has nothing to do with it
        closing(Ems(url=several.url, servers=servers)) as now,
        pytest.raises(MoveUnfinished, match="readers 1"),
    ):
        TopicMove(now, "parcels", "mail").run(timeout_s=0)
    _begin_without(several, "mail")
    Admin(several.database("main")).reset_group("parcels", "readers", "latest")
    _move(app, "parcels", "mail")
    assert not Admin(several.database("mail")).groups("parcels")[0][1].paused


def _begin_without(several: Several, target: str) -> None:
    """Give a move again while the server is away that the topic has come from: main cannot be, but by its address."""
    url = urlsplit(several.url)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
    away = f"mysql://{url.username}:{url.password}@127.0.0.1:{port}{url.path}"
    with (
        closing(Ems(url=away, servers=several.setting())) as now,
        pytest.raises(MoveUnfinished, match="server 'main', which"),
    ):
        TopicMove(now, "parcels", target).run(timeout_s=0)


def test_a_message_that_the_other_server_does_not_take_is_set_aside(
    several: Several, app: Ems, server: LocalDatabase, forwarding: Callable[[str], None]
) -> None:
    with app.transaction() as tx:
        tx.send("orders.new", "first")
    main = several.urls["main"]
    (topic_id,) = rows_of(main, "SELECT id FROM ems_topic WHERE name = 'orders.new'")[0]
    for number, body in enumerate(("'second'", "REPEAT('x', 6000000)", "'last'")):
        rows_of(
            main,
            "INSERT INTO ems_outbox (topic_id, due_at, uid, headers, body, producer_id, created_at) "
            f"VALUES ({topic_id}, UTC_TIMESTAMP(6) + INTERVAL {number} MICROSECOND, UNHEX(REPEAT('0{number}', 16)), '', {body}, '', NOW(6))",
        )
    before = rows_of(main, "SELECT @@GLOBAL.max_allowed_packet")[0][0]
    set_globals(server, f"SET GLOBAL max_allowed_packet = {8 << 20}")
    try:
        forwarding("main")
        until(lambda: rows_of(main, "SELECT COUNT(*) FROM ems_outbox") == [(0,)], 20, "all have left")
    finally:
        set_globals(server, f"SET GLOBAL max_allowed_packet = {before}")
    ((size, error),) = rows_of(main, "SELECT LENGTH(body), error FROM ems_publish")
    assert size == 6_000_000 and "server orders does not take it" in error
    _soon(lambda: several.database("orders").call(lambda session: Relay()(session, app.settings)) is not None)
    _soon(lambda: _bodies(several, "orders", "orders.new") == [b"first", b"second", b"last"])
