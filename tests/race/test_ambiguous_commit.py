"""The connection dies in the packet that ends in COMMIT, before or after the server got it."""

import threading
from typing import Any

import pytest

from emsworker.core.errors import ConnectionLost
from emsworker.store.engine.database import Database
from emsworker.store.groups import claims, progress
from tests.support.proxy import Cut, proxied
from tests.support.streams import AppFactory, Stream, failed, flush_of, stored, wait_until

INSERT = b"INSERT INTO ems_message"


@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())
def test_a_send_whose_answer_is_lost_is_one_row(stream: Stream, new_app: AppFactory, cut: Cut) -> None:
    with proxied(stream.url) as (proxy, url):
        app = new_app(url=url)
        app.send("t", 0)
        for number in range(1, 6):
            proxy.arm(INSERT, cut)
            receipt = app.send("t", number)
            assert receipt.created
            assert stream.value("SELECT body FROM ems_message WHERE `offset` = %s", receipt.offset) == b"%d" % number
        assert proxy.cuts == 5
        bodies = [row[0] for row in stream.rows("SELECT body FROM ems_message WHERE `offset` > 0 ORDER BY `offset`")]
        assert bodies == [b"%d" % number for number in range(6)]
        app.close()


@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())
def test_send_many_whose_answer_is_lost(stream: Stream, cut: Cut) -> None:
    stream.topic("t", partitions=2)
    with proxied(stream.url) as (proxy, url):
        app = stream.app(url=url)
        app.send("t", 0, partition=0)
        proxy.arm(INSERT, cut)
        receipts = app.send_many("t", range(100), key="k")
        assert proxy.cuts == 1
        assert all(receipt.created for receipt in receipts)
        assert len({(receipt.partition, receipt.offset) for receipt in receipts}) == 100
        assert stream.value("SELECT COUNT(*) FROM ems_message WHERE `offset` > 0") == 101
        app.close()


def test_killed_connections_while_sending(stream: Stream, new_app: AppFactory) -> None:
    app = new_app()
    app.send("t", -1)
    stop = threading.Event()

    def kill() -> None:
        with stream.other() as other, other.cursor() as cursor:
            while not stop.wait(0.03):
                number = app.stream.producer._session._connection
                if number is not None:
                    try:
                        cursor.execute(f"KILL CONNECTION {number.thread_id()}")
                    except Exception as error:
                        assert "Unknown thread" in str(error)

    killing = threading.Thread(target=kill)
    killing.start()
    try:
        receipts = [app.send("t", number) for number in range(60)]
    finally:
        stop.set()
        killing.join()
    assert all(receipt.created for receipt in receipts)
    bodies = [int(row[0]) for row in stream.rows("SELECT body FROM ems_message WHERE kind = 'message' ORDER BY 1")]
    assert sorted(bodies) == list(range(-1, 60))
    assert len({receipt.offset for receipt in receipts}) == 60


@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())
def test_a_lost_ack_duplicates_and_never_loses(stream: Stream, cut: Cut) -> None:
    stream.app().send_many("t", range(4))
    with proxied(stream.url) as (proxy, url):
        topic = stream.topic("t")
        group, me = stream.group(topic), stream.client()
        with Database(url).session() as session:
            claim = claims.take_range(session, stream.claimant(topic, group, me), 0)
            assert claim
            proxy.arm(b"UPDATE ems_claim", cut)
            with pytest.raises(ConnectionLost):
                progress.flush(session, flush_of(claim, topic, 4, failures=[failed(2)]))
        assert proxy.cuts == 1
    landed = cut is Cut.AFTER
    if landed:
        wait_until(lambda: stream.claims(group)[0][3] == "done", what="the commit that nobody heard of")
    stream.expire(me)
    assert len(stream.recover()) == (0 if landed else 1)
    adopted = claims.take_waiting(stream.session, stream.claimant(topic, group, stream.client()))
    assert (not adopted) == landed
    assert len(stream.retries(group)) == (1 if landed else 0)


@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())
def test_a_claim_whose_answer_is_lost_comes_back_uncharged(stream: Stream, cut: Cut) -> None:
    stream.app().send_many("t", range(4))
    topic = stream.topic("t")
    group, me = stream.group(topic), stream.client()
    with proxied(stream.url) as (proxy, url), Database(url).session() as session:
        session.rows("SELECT 1")
        proxy.arm(b"INSERT INTO ems_claim", cut)
        with pytest.raises(ConnectionLost):
            claims.take_range(session, stream.claimant(topic, group, me), 0)
    taken = cut is Cut.AFTER
    if taken:
        wait_until(lambda: stream.cursor(group) == 5, what="the claim that nobody heard of")
    stream.expire(me)  # its owner gives up its identity
    assert [one.charged for one in stream.recover()] == ([None] if taken else [])
    again = stream.client()
    claimant = stream.claimant(topic, group, again)
    claim: Any = (
        claims.take_waiting(stream.session, claimant) if taken else claims.take_range(stream.session, claimant, 0)
    )
    assert [message.body for message in claim.messages] == [0, 1, 2, 3]
    assert stored(stream, "t") == {0: [1, 2, 3, 4]}
