"""Topics on several servers: where they are created, sending to them, also in a transaction, and results."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from emsworker import Ems
from emsworker.beat.forwarder import forwarders
from emsworker.core.errors import ConfigError, TopicRuleError
from emsworker.local import LocalDatabase
from emsworker.store.topics import get_topic
from tests.support.servers import connect
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
    statement = (
        "SELECT m.body FROM ems_message m JOIN ems_topic t ON t.id = m.topic_id WHERE t.name = %s ORDER BY m.`offset`"
    )
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
    assert _bodies(several, "orders", "orders.new") == [b"kept", b"local"]


def test_a_message_that_is_offered_again_is_not_accepted_again(several: Several, app: Ems) -> None:
    from emsworker.store.stream import forwards

    app.send("orders.new", "before")
    with app.transaction() as tx:
        tx.send("orders.new", "kept")
    main = several.database("main")
    topic = main.call(lambda session: get_topic(session, "orders.new"))
    assert topic is not None
    messages = main.call(lambda session: forwards.read(session, topic.id, 10))
    app.server("orders").accept("orders.new", messages)
    with connect(several.urls["orders"], autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM ems_message")  # it was run, and retention has deleted it
    app.server("orders").accept("orders.new", messages)
    assert _bodies(several, "orders", "orders.new") == []


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
