"""Renewals that come too late, or that others only see too late: who is taken for dead can finish nothing of it."""

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from emsworker.beat import recovery
from emsworker.core.config import Settings
from emsworker.core.errors import FenceLost
from emsworker.store.cluster import clients
from emsworker.store.groups import progress
from tests.support.streams import Stream, flush_of, wait_until


def test_a_renewal_that_waits_in_the_server_is_granted_though_others_saw_the_lease_run_out(stream: Stream) -> None:
    """It begins in time and waits for its row; a starved machine, whose disk is slow to commit it, does the same.

    The process never learns that it was taken for dead, so what it finished since its acked offset is run twice and
    only the beat tells why. Its claims are another's: it can finish nothing.
    """
    topic = stream.topic()
    stream.app().send_many("t", [0] * 3)
    group, me = stream.group(topic), stream.client(lease_s=2.0)
    claim = stream.take(topic, group, me)
    holder = stream.other()
    with stream.new_session() as mine, ThreadPoolExecutor(1) as pool, holder.cursor() as cursor:
        cursor.execute("SELECT 1 FROM ems_client WHERE client_id = %s FOR UPDATE", (me,))
        renewal = pool.submit(clients.renew, mine, [me], 60.0)
        wait_until(lambda: stream.value("SELECT expires_at < NOW(6) FROM ems_client"), what="the end of the lease")
        assert not renewal.done(), "it waits"
        recovered = recovery.recover(stream.session, 0.0, 0.0)
        holder.rollback()
        assert renewal.result(30), "it was asked for in time"
    holder.close()
    (one,) = recovered
    assert one.client_id == me
    assert one.over_s is not None
    assert 0 <= one.over_s < 30
    with pytest.raises(FenceLost):
        progress.flush(stream.session, flush_of(claim, topic, 3))
    assert clients.delete_expired(stream.session) == 0, "its lease is good"


def test_a_client_that_somebody_holds_keeps_no_duty_waiting(stream: Stream) -> None:
    """A renewal that waits for the disk holds its rows; the beat that waited for them would recover nobody."""
    held, free = stream.client(), stream.client()
    stream.expire(held)
    stream.expire(free)
    with stream.other() as holder, holder.cursor() as cursor:
        cursor.execute("SELECT 1 FROM ems_client WHERE client_id = %s FOR UPDATE", (held,))
        assert clients.delete_expired(stream.session) == 1
        assert [row.client_id for row in clients.list_clients(stream.session)] == [held]
        holder.rollback()
    assert clients.delete_expired(stream.session) == 1


def test_the_beat_tells_for_how_long_a_lease_had_been_over(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    topic = stream.topic()
    stream.app().send_many("t", [0] * 3)
    group = stream.group(topic)
    expired, gone = stream.client(), stream.client()
    stream.take(topic, group, expired, 1)
    stream.take(topic, group, gone, 1)
    stream.expire(expired)
    clients.deregister(stream.session, [gone])
    with caplog.at_level(logging.WARNING):
        recovery.recover_claims(stream.session, Settings())
    told = {record.args[0]: record.getMessage() for record in caplog.records if isinstance(record.args, tuple)}
    assert "orphaned, its lease was over for " in told[expired]
    assert "orphaned, no message charged" in told[gone]
