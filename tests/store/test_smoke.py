"""The whole way of a message through the store, once."""

from emsworker import Ems
from emsworker.store.groups import claims, progress
from tests.support.streams import Stream, failed, flush_of, offsets


def test_publish_claim_flush_retry_recover(stream: Stream, app: Ems) -> None:
    receipts = app.send_many("t", [{"n": n} for n in range(10)])
    assert [receipt.offset for receipt in receipts] == list(range(1, 11))
    topic = app.stream.catalog.topic("t")
    group = stream.group(topic)
    me = stream.client()
    claim = stream.take(topic, group, me, batch=6)
    assert [message.body["n"] for message in claim.messages] == list(range(6))
    so_far = flush_of(claim, topic, 6, failures=[failed(2), failed(3, dead="gone")])
    second = claims.take_range(stream.session, stream.claimant(topic, group, me), 0, [so_far])
    assert second
    assert offsets(second) == [7, 8, 9, 10]
    assert stream.retries(group) == [(2, 1, False, 0)]
    third = claims.take_retries(stream.session, stream.claimant(topic, group, me))
    assert third
    assert offsets(third) == [2]
    progress.flush(stream.session, flush_of(third, topic, 2, done_offsets=[(2, 2, 7)]))
    stream.expire(me)
    assert [one.charged for one in stream.recover()] == [None]
    adopted = claims.take_waiting(stream.session, stream.claimant(topic, group, stream.client()))
    assert adopted
    assert adopted.isolation
    progress.flush(stream.session, flush_of(adopted, topic, 10))
    assert stream.claims(group)[-1][:4] == (7, 10, 10, "done")
    assert stream.value("SELECT COUNT(*) FROM ems_dead") == 1
    assert stream.retries(group) == []
