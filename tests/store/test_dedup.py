"""Idempotent publishing: one key, one message, whoever sends and however."""

import threading
from typing import Any

import pytest

from emsworker import Ems
from emsworker.core.errors import ConfigError, InvalidName
from emsworker.publish.outgoing import Outgoing
from emsworker.store.groups.progress import flush
from emsworker.store.stream import dedup, outbox
from tests.support.streams import Stream, flush_of, in_threads
from tests.support.waiting import until

ALL = "SELECT (SELECT COUNT(*) FROM ems_message WHERE `offset` > 0) + (SELECT COUNT(*) FROM ems_outbox)"
OVER = "UPDATE ems_dedup SET expires_at = expires_at - INTERVAL 1 HOUR, look_at = look_at - INTERVAL 1 HOUR"


def send(app: Ems, **options: Any) -> Any:
    return app.send("t", {"n": 1}, **{"dedup_key": "k", **options})


def test_a_second_send_returns_the_first_ones_id(stream: Stream) -> None:
    app = stream.app()
    first = send(app)
    assert first.created
    assert stream.value("SELECT COUNT(*) FROM ems_message WHERE `offset` > 0") == 1, "in the stream at once"
    for again in (
        send(app),
        send(app, delay="1h"),
        app.send_many("t", [Outgoing("t", 1, dedup_key="k")])[0],
        send(stream.app()),
    ):
        assert (again.id, again.created) == (first.id, False)
    with app.transaction() as tx:
        assert not tx.send("t", 1, dedup_key="k").created
    with stream.other() as connection:
        assert not send(app, transaction=connection).created
        connection.commit()
    assert send(app, dedup_key="K").created, "keys are bytes"
    assert app.send("other", 1, dedup_key="k").created, "each topic has keys of its own"
    assert stream.value(ALL) == 3


def test_one_send_of_many_with_one_key_is_kept(stream: Stream) -> None:
    app = stream.app()
    receipts = app.send_many("t", range(10), dedup_key="k")
    assert [receipt.created for receipt in receipts] == [True] + [False] * 9
    assert len({receipt.id for receipt in receipts}) == 1
    receipts = app.send_many("t", [Outgoing("t", n, dedup_key=f"k{n % 3}") for n in range(9)])
    assert sum(receipt.created for receipt in receipts) == 3
    assert stream.value(ALL) == 4


def test_a_key_is_taken_while_its_message_is_not_finished(stream: Stream) -> None:
    app = stream.app()
    topic = stream.topic("t")
    group = stream.group(topic)
    first = send(app, dedup_window=0)
    assert send(app, dedup_window=0).id == first.id, "unread"
    claim = stream.take(topic, group, stream.client())
    assert send(app, dedup_window=0).id == first.id, "claimed"
    flush(stream.session, flush_of(claim, topic, claim.hi))
    second = send(app, dedup_window=0)
    assert second.created, "done"
    assert second.id != first.id


def test_after_the_window_and_the_end_it_is_free_and_swept(stream: Stream) -> None:
    app = stream.app()
    topic = stream.topic("t")
    group = stream.group(topic)
    first = send(app, dedup_window="1h")
    claim = stream.take(topic, group, stream.client())
    flush(stream.session, flush_of(claim, topic, claim.hi))
    assert not send(app).created, "its window lasts"
    stream.rows(OVER)
    unread = send(app, dedup_key="unread")
    stream.rows(OVER)
    assert dedup.sweep(stream.session, 100) == 2
    assert stream.rows("SELECT `key` FROM ems_dedup") == [(b"unread",)]
    assert dedup.sweep(stream.session, 100) == 0, "not looked at again at once"
    assert send(app).id != first.id
    assert send(app, dedup_key="unread").id == unread.id


def test_a_delayed_message_keeps_its_key(stream: Stream) -> None:
    app = stream.app()
    first = send(app, delay="1s", dedup_window=0)
    assert send(app).id == first.id
    until(lambda: outbox.relay_due(stream.session, 10).topic_ids, 5, "it is due")
    assert send(app).id == first.id
    assert stream.value(ALL) == 1


def test_of_racing_producers_one_writes(stream: Stream) -> None:
    apps = [stream.app() for _ in range(6)]
    stream.topic("t", partitions=2)
    for round_ in range(5):
        receipts = in_threads(6, lambda n, k=f"r{round_}": send(apps[n], dedup_key=k))
        assert sum(receipt.created for receipt in receipts) == 1
        assert len({receipt.id for receipt in receipts}) == 1
    assert stream.value(ALL) == 5


def test_the_second_waits_for_the_firsts_transaction(stream: Stream) -> None:
    app = stream.app()
    stream.topic("t")
    for end, created in (("rollback", True), ("commit", False)):
        found: list[bool] = []
        with stream.other() as connection:
            send(app, transaction=connection, dedup_key=end)
            thread = threading.Thread(target=lambda: found.append(send(app, dedup_key=end).created))  # noqa: B023
            thread.start()
            thread.join(0.3)
            assert thread.is_alive(), "it cannot know yet"
            getattr(connection, end)()
            thread.join(20)
        assert found == [created]
    assert stream.value(ALL) == 2


def test_wrong_keys_and_windows_are_refused(stream: Stream) -> None:
    app = stream.app()
    with pytest.raises(ConfigError, match="dedup_window = 'soon'"):
        send(app, dedup_window="soon")
    with pytest.raises(InvalidName, match="dedup_key of 300 bytes is too long"):
        send(app, dedup_key="x" * 300)
    assert stream.value(ALL) == 0
