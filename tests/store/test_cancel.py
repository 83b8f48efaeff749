"""Cancelled messages and purged topics: never run, in any group, at no cost to readers."""

from typing import Any

import pytest

from emsworker import Cancelled, Ems
from emsworker.admin import Admin
from emsworker.admin.monitoring import Monitoring
from emsworker.arrow import scan
from emsworker.core.errors import InvalidName, UnknownMessage
from emsworker.core.flush import ResultRow
from emsworker.core.model import Claim, Failure, Group, Outcome, Topic
from emsworker.core.offsets import OffsetRange
from emsworker.core.selection.filters import EVERYTHING
from emsworker.store.groups import claims
from emsworker.store.groups.cancel import StateAtCancel, sweep
from emsworker.store.groups.progress import flush
from emsworker.store.stream import broadcast, outbox
from tests.support import rows
from tests.support.streams import Stream, failed, flush_of, in_threads, offsets

KINDS = "SELECT kind, COUNT(*) FROM ems_message WHERE `offset` > 0 GROUP BY kind ORDER BY 2"


def retried(stream: Stream, topic: Topic, group: Group, client: str) -> Claim:
    claim = claims.take_retries(stream.session, stream.claimant(topic, group, client))
    assert claim
    return claim


def cancelled(offset: int, attempt: int = 1) -> Failure:
    return Failure(offset, attempt, Outcome.CANCELLED, "RunCancelled", None, None, 0.1)


def end(stream: Stream, topic: Topic, claim: Claim) -> None:
    """As a worker ends a claim in which nothing is left to be run."""
    gone = [Failure.gone(offset, attempt) for offset, attempt in claim.gone]
    flush(stream.session, flush_of(claim, topic, claim.hi, finished=True, failures=gone))


def test_a_delayed_message_is_deleted(stream: Stream) -> None:
    app = stream.app()
    receipt = app.send("t", 1, delay="1h")
    other = app.send("t", 2, countdown=0)
    assert app.cancel(receipt)
    assert app.cancel(receipt), "again, by one who has not heard of the first one's commit"
    assert Admin(app).cancel("t", receipt.id) is StateAtCancel.BEFORE
    assert outbox.relay_due(stream.session, 10).topic_ids
    assert stream.value("SELECT uid FROM ems_message WHERE `offset` > 0").hex() == other.id.replace("-", "")


def test_a_waiting_message_runs_in_no_group(stream: Stream) -> None:
    app = stream.app()
    topic = stream.topic("t")
    groups = [stream.group(topic, name) for name in ("a", "b")]
    receipts = app.send_many("t", range(5))
    first = stream.take(topic, groups[0], stream.client(), batch=2)
    assert app.cancel(receipts[2].id)
    assert app.cancel(receipts[2]), "again is no error"
    assert app.cancel(receipts[3], "t")
    assert offsets(first) == [1, 2]
    assert offsets(stream.take(topic, groups[0], stream.client())) == [5]
    assert offsets(stream.take(topic, groups[1], stream.client())) == [1, 2, 5]


def test_the_body_stays_stored_and_nothing_reads_it(stream: Stream) -> None:
    """Only the kind changes, so that it takes no right to overwrite a body; budgets of bytes do not count it."""
    app = stream.app()
    topic = stream.topic("t")
    group = stream.group(topic)
    receipts = app.send_many("t", ["secret" * 1000, "secret" * 1000, 3])
    for one in receipts[:2]:
        assert app.cancel(one)
    assert stream.value("SELECT SUM(body LIKE '%%secret%%') FROM ems_message WHERE kind = 'cancelled'") == 2
    every = scan.Query("messages", ("kind", "value", "size"), cancelled=True, tombstones=True)
    fetched = scan.fetch_rows(stream.session, every, OffsetRange(topic.id, 0, 1, 4))
    assert fetched.rows == (("cancelled", b"", 0), ("cancelled", b"", 0), ("message", b"3", 1))
    assert [type(row[2]) for row in fetched.rows] == [int] * 3
    packed = scan.fetch_packed(stream.session, every, OffsetRange(topic.id, 0, 1, 4))
    assert (packed.count, packed.texts["value"]) == (3, b"3")
    assert scan.weigh(stream.session, every, OffsetRange(topic.id, 0, 1, 4))[1] < 1000
    assert broadcast.read(stream.session, topic, 0, 1, 3, 100, EVERYTHING).hi == 3
    with pytest.raises(UnknownMessage):
        Admin(app).messages.get(receipts[0].id)
    claim = claims.take_range(stream.session, stream.claimant(topic, group, stream.client(), batch_bytes=100), 0)
    assert claim and (claim.lo, claim.hi, offsets(claim)) == (1, 3, [3])


def test_a_finished_one_stays_as_it_is(stream: Stream) -> None:
    app = stream.app()
    topic = stream.topic("t")
    group = stream.group(topic)
    receipt = app.send("t", 1)
    claim = stream.take(topic, group, stream.client())
    flush(stream.session, flush_of(claim, topic, claim.hi))
    assert not app.cancel(receipt)
    assert stream.value("SELECT body FROM ems_message WHERE `offset` > 0") == b"1"
    with pytest.raises(UnknownMessage, match="topic 't' has no message"):
        app.cancel("0190d6a4-5f2b-7c3e-8d1a-2b3c4d5e6f70")
    with pytest.raises(InvalidName, match="'x' is not a message id"):
        app.cancel("x")


def test_a_task_cancels_its_calls(stream: Stream) -> None:
    app = stream.app()

    @app.task(topic="t")
    def work(n: int) -> None: ...

    assert work.cancel(work.delay(1))
    assert work.cancel(work.apply_async([1], countdown=60).id)
    assert stream.rows(KINDS) == [("cancelled", 1)]


def test_retries_stop_whether_they_wait_or_are_claimed(stream: Stream) -> None:
    app = stream.app()
    topic = stream.topic("t")
    group = stream.group(topic)
    client = stream.client()
    receipts = app.send_many("t", range(3))
    claim = stream.take(topic, group, client)
    flush(stream.session, flush_of(claim, topic, 3, failures=[failed(n) for n in (1, 2, 3)]))
    app.cancel(receipts[0])
    assert [offset for offset, *_ in stream.retries(group)] == [2, 3], "one that waits is dropped"
    again = retried(stream, topic, group, client)
    assert offsets(again) == [2, 3]
    app.cancel(receipts[1])  # while it runs, and then it fails
    done = {"finished": True, "done_offsets": [(3, 2, 7)], "failures": [failed(2, 2)]}
    flush(stream.session, flush_of(again, topic, again.hi, **done))
    last = retried(stream, topic, group, client)
    assert offsets(last) == [], "nothing is left to run"
    end(stream, topic, last)
    assert stream.retries(group) == []
    assert stream.value("SELECT COUNT(*) FROM ems_claim WHERE state <> 'done'") == 0


def test_a_cancelled_one_that_fails_for_good_is_no_dead_letter(stream: Stream) -> None:
    app = stream.app()
    topic = stream.topic("t")
    group = stream.group(topic)
    receipt = app.send("t", 1)
    claim = stream.take(topic, group, stream.client())
    app.cancel(receipt)
    flush(stream.session, flush_of(claim, topic, 1, failures=[failed(1, 9, dead="no")]))
    assert stream.value("SELECT COUNT(*) FROM ems_dead") == 0


def test_a_client_that_has_it_is_asked_and_the_result_tells_when_nothing_runs_any_more(stream: Stream) -> None:
    app = stream.app()
    topic = stream.topic("t")
    group, other = (stream.group(topic, name) for name in ("a", "b"))
    receipts = app.send_many("t", range(4))
    result = app.result(receipts[0])
    claim = stream.take(topic, group, stream.client(), batch=2)
    admin = Admin(app)
    assert [admin.cancel("t", one.id) for one in (receipts[0], receipts[3])] == ["running", "waiting"]
    assert admin.cancel("t", receipts[0].id) == "running", "who asks again is told again"
    assert app.result(receipts[3]).status == "cancelled", "no client has it, and none will"
    found = claims.find_work(stream.session, [group.id, other.id])
    assert found.cancelled == {(group.id, 0, 1)}
    assert result.status == "pending" and app.result(receipts[0], group="b").status == "cancelled"
    assert sweep(stream.session, 10) == 0
    flush(stream.session, flush_of(claim, topic, 1, failures=[cancelled(1)]))
    assert result.status == "cancelled" and result.cancelled and app.result(receipts[1]).status == "pending"
    with pytest.raises(Cancelled, match=f"^{receipts[0].id} was cancelled$"):
        result.get(1)
    assert sweep(stream.session, 10) == 1
    assert claims.find_work(stream.session, [group.id]).cancelled == frozenset()
    trace = next(one for one in Monitoring(app).trace(receipts[0].id)[0].groups if one.group.name == "a")
    assert trace.state == "cancelled"


def test_a_call_that_is_cancelled_stays_so_while_a_later_claim_passes_over_it(stream: Stream) -> None:
    app = stream.app()
    topic = stream.topic("t")
    group, client = stream.group(topic), stream.client()
    receipts = app.send_many("t", range(4))
    assert Admin(app).cancel("t", receipts[1].id) is StateAtCancel.WAITING
    assert app.result(receipts[1]).status == "cancelled"
    claim = stream.take(topic, group, client)
    assert offsets(claim) == [1, 3, 4]
    assert app.result(receipts[1]).status == "cancelled", "whatever runs before it in this claim"
    assert Admin(app).cancel("t", receipts[1].id) is StateAtCancel.BEFORE
    assert app.result(receipts[1]).status == "cancelled", "nor does it matter that it is cancelled again"
    assert Admin(app).cancel("t", receipts[0].id) is StateAtCancel.RUNNING
    stream.rows("DELETE FROM ems_result WHERE group_id = 4294967295")  # as if whoever cancelled had died in between
    stream.rows("DELETE FROM ems_cancel")
    assert app.result(receipts[0]).status == "pending", "as long as nobody knows who has it"
    assert Admin(app).cancel("t", receipts[0].id) is StateAtCancel.RUNNING
    flush(stream.session, flush_of(claim, topic, 4, failures=[cancelled(1)]))
    assert [app.result(one).status for one in receipts[:2]] == ["cancelled"] * 2


def test_a_retry_that_runs_is_cancelled_too(stream: Stream) -> None:
    app = stream.app()
    topic = stream.topic("t")
    group = stream.group(topic)
    receipt = app.send("t", 1)
    client = stream.client()
    flush(stream.session, flush_of(stream.take(topic, group, client), topic, 1, failures=[failed(1)]))
    again = retried(stream, topic, group, client)
    assert Admin(app).cancel("t", receipt.id) == "running" and app.result(receipt).status == "pending"
    flush(stream.session, flush_of(again, topic, again.hi, finished=True, failures=[cancelled(1, 2)]))
    assert app.result(receipt).status == "cancelled" and sweep(stream.session, 10) == 1


def test_a_delayed_call_that_is_cancelled_and_sent_again_waits_again(stream: Stream) -> None:
    app = stream.app()
    topic = stream.topic("t")
    receipt = app.send("t", 1, delay="1h")
    result = app.result(receipt)
    assert app.cancel(receipt) and app.result(receipt).status == "cancelled"
    app.send("t", 1, delay="1h", uid=receipt.id)
    assert app.result(receipt).status == "pending"
    stream.rows("UPDATE ems_outbox SET due_at = NOW(6)")
    outbox.relay_due(stream.session, 10)
    assert app.result(receipt).status == "pending"
    claim = stream.take(topic, stream.group(topic), stream.client())
    flush(stream.session, flush_of(claim, topic, 1, results=[ResultRow(claim.messages[0].uid, b"42", ttl_s=60.0)]))
    assert result.get(1) == 42


def test_a_race_with_the_relay_loses_nothing_and_runs_nothing(stream: Stream) -> None:
    app = stream.app()
    stream.topic("t")
    receipts = app.send_many("t", range(40), countdown=0)

    def work(number: int) -> Any:
        if number == 0:
            with stream.new_session() as session:
                return [outbox.relay_due(session, 3) for _ in range(20)]
        return [app.cancel(receipt) for receipt in receipts]

    assert in_threads(2, work)[1] == [True] * 40
    assert stream.value("SELECT COUNT(*) FROM ems_message WHERE kind = 'message'") == 0
    assert stream.value("SELECT COUNT(*) FROM ems_outbox") == 0


def fill(stream: Stream, app: Ems) -> tuple[Topic, Group]:
    topic = stream.topic("t")
    group = stream.group(topic)
    app.send_many("t", range(2500))
    claim = stream.take(topic, group, stream.client(), batch=100)
    flush(stream.session, flush_of(claim, topic, 100, failures=[failed(7, retry_in_s=60.0)]))
    app.send_many("t", range(4), delay="1h")
    return topic, group


def test_a_purge_takes_what_is_unfinished(stream: Stream) -> None:
    app = stream.app()
    topic, group = fill(stream, app)
    admin = Admin(app)
    would = admin.purge_topic("t", dry_run=True)
    assert (would.messages, would.delayed, would.retries) == (2400, 4, 1)
    assert stream.rows(KINDS)[0] == ("message", 2500), "a dry run changes nothing"
    steps: list[int] = []
    assert admin.purge_topic("t", progress=steps.append) == would
    assert (sum(steps), max(steps)) == (2405, 1000)
    assert stream.rows(KINDS) == [("message", 99), ("cancelled", 2401)]
    assert stream.value("SELECT kind FROM ems_message WHERE `offset` = 7") == "cancelled", (
        "so is what waits for a retry"
    )
    app.send("t", "new")
    client = stream.client()
    while claim := claims.take_range(stream.session, stream.claimant(topic, group, client), 0):
        flush(stream.session, flush_of(claim, topic, claim.hi))
        if claim.messages:
            assert [message.body for message in claim.messages] == ["new"]
    assert stream.retries(group) == []


def test_without_a_group_everything_is_unread(stream: Stream) -> None:
    app = stream.app()
    app.send_many("t", range(10))
    assert Admin(app).purge_topic("t").messages == 10


def test_stale_retries_are_found(stream: Stream) -> None:
    app = stream.app()
    topic, group = fill(stream, app)
    admin = Admin(app)
    assert admin.stale_retries("t", 10) == []
    rows.lose(stream.rows, 7)
    (row,) = admin.stale_retries("t", 10)
    assert (row["group"], row["partition"], row["offset"]) == ("g", 0, 7)
    stream.make_due()
    claim = retried(stream, topic, group, stream.client())
    assert offsets(claim) == []
    end(stream, topic, claim)
    assert admin.stale_retries("t", 10) == []
