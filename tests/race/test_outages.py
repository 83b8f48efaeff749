"""A consumer whose server was away for longer than its lease keeps what nobody else has taken meanwhile."""

from typing import Any

import pytest

from emsworker import Ems, FenceLost, PullConsumer
from tests.support.proxy import Cut, proxied
from tests.support.streams import AppFactory, Stream
from tests.support.waiting import until

# Nothing is renewed but by the tests.
SETTINGS: dict[str, Any] = {
    "lease_s": 600,
    "renew_s": 300,
    "ack_interval_s": 0.02,
    "poll_max_s": 0.05,
    "ladder": "1ms",
    "jitter": 0,
}


def _outage(stream: Stream) -> None:
    """Leave behind what an outage does: the lease is over, and the server is there again."""
    for (client_id,) in stream.rows("SELECT client_id FROM ems_client"):
        stream.expire(client_id)


def _fetch(consumer: PullConsumer, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        messages = consumer.fetch(count - len(found), wait=10)
        assert messages, found
        found += messages
    return found


def test_everything_in_hand_stays_if_the_owner_comes_first(stream: Stream, new_app: AppFactory) -> None:
    app = new_app(**SETTINGS)
    app.send_many("t", range(6), partition=0)
    with app.consumer("t", "g", prefetch=3) as consumer:
        held = _fetch(consumer, 3)
        _outage(stream)
        consumer._lease.renew()
        assert stream.recover() == []
        consumer.ack(held[2], held[0])
        consumer.flush()
        consumer.ack(held[1])
        more = _fetch(consumer, 3)
        assert [one.body for one in more] == [3, 4, 5]
        consumer.ack(*more)
        consumer.flush()
        assert consumer.losses == 0
    assert stream.rows("SELECT * FROM ems_retry") == []


def test_what_recovery_took_first_is_given_up_and_nothing_else(stream: Stream, new_app: AppFactory) -> None:
    app = new_app(**SETTINGS)
    app.send_many("t", range(4), partition=0)
    with app.consumer("t", "g", prefetch=10) as consumer:
        lost, kept = _fetch(consumer, 2), _fetch(consumer, 2)
        _outage(stream)
        owner = stream.other()
        with owner.cursor() as cursor:  # the claim that it is about to write to, so that recovery passes it over
            key = stream.rows(
                "SELECT group_id, `partition`, lo, claim_id FROM ems_claim WHERE lo = %s", kept[0].offset
            )[0]
            cursor.execute(
                "SELECT 1 FROM ems_claim WHERE group_id = %s AND `partition` = %s AND lo = %s AND claim_id = %s FOR UPDATE",
                key,
            )
            stream.recover()
            owner.rollback()
        consumer._lease.renew()
        again = _fetch(consumer, 2)
        assert consumer.losses > 0
        with pytest.raises(FenceLost):
            consumer.ack(lost[0])
        consumer.ack(*kept, *again)
        consumer.flush()


def test_a_client_whose_row_is_gone_begins_anew(stream: Stream, new_app: AppFactory) -> None:
    app = new_app(**SETTINGS)
    app.send_many("t", range(2), partition=0)
    with app.consumer("t", "g") as consumer:
        held = _fetch(consumer, 2)
        stream.rows("DELETE FROM ems_client")
        stream.recover()
        consumer._lease.renew()
        assert consumer.losses == 1
        again = _fetch(consumer, 2)
        assert [one.body for one in again] == [one.body for one in held]
        consumer.ack(*again)
        consumer.flush()


def test_it_looks_at_its_claims_also_when_the_answer_that_took_the_lease_up_was_lost(stream: Stream) -> None:
    with proxied(stream.url) as (proxy, url):
        app = Ems("t", url=url, **SETTINGS)
        app.send_many("t", range(2), partition=0)
        with app.consumer("t", "g") as consumer:
            held = _fetch(consumer, 2)
            _outage(stream)
            stream.recover()
            proxy.arm(b"COMMIT", Cut.AFTER, passing=1)  # that of the renewal, which has changed nothing
            consumer._lease.renew()
            assert not proxy.armed
            assert consumer.losses == 0, "it does not know yet"
            consumer._lease.renew()
            again = _fetch(consumer, 2)
            assert consumer.losses == 1
            assert [one.body for one in again] == [one.body for one in held]
            with pytest.raises(FenceLost):
                consumer.ack(*held)
            consumer.ack(*again)
            consumer.flush()
        app.close()


def test_what_was_claimed_and_not_delivered_is_looked_at_before_it_is(stream: Stream, new_app: AppFactory) -> None:
    app = new_app(**SETTINGS)
    app.send_many("t", range(4), partition=0)
    with app.consumer("t", "g", prefetch=10) as consumer:
        # As a fetch does whose lease runs out between claim and delivery.
        until(lambda: consumer._claiming.take(10, 10, consumer._in_hand, 1), 10, "they are claimed")
        _outage(stream)
        stream.recover()
        consumer._lease.renew()
        messages = _fetch(consumer, 4)
        assert [one.attempt for one in messages] == [1] * 4, "no attempt is charged"
        consumer.ack(*messages)
        consumer.flush()
