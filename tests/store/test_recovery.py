"""Recovery of orphaned and stuck claims, and the leases that tell them."""

import dataclasses
from typing import Any

import pytest

from emsworker.beat import recovery
from emsworker.core.codec import Decoder
from emsworker.core.config import Settings
from emsworker.core.errors import FenceLost, TimeLimitExceeded
from emsworker.core.ids import new_client_id
from emsworker.core.model import TASK_HEADER, Group, HandlerRow, Isolation, Message, Order, Outcome, Topic
from emsworker.store import topics
from emsworker.store.cluster import clients
from emsworker.store.groups import claims, handlers, ordered, progress
from emsworker.tasks.handler_rows import declare_handlers
from emsworker.worker.dead_notices import DeadNotices
from tests.support import rows
from tests.support.streams import Stream, failed, flush_of, offsets


def filled(stream: Stream, count: int, name: str = "t") -> tuple[Topic, Group, str]:
    """A topic with messages 1..count, a group and a client."""
    app = stream.app()
    app.send_many(name, range(1, count + 1))
    topic = app.stream.catalog.topic(name)
    return topic, stream.group(topic), stream.client()


def with_retries(stream: Stream, count: int) -> tuple[Topic, Group, str]:
    """Messages 1..count, each failed once and due."""
    topic, group, me = filled(stream, count)
    claim = stream.take(topic, group, me)
    progress.flush(stream.session, flush_of(claim, topic, count, failures=[failed(n) for n in range(1, count + 1)]))
    stream.make_due()
    return topic, group, me


def _run_out(stream: Stream, claim_sql: str) -> None:
    stream.rows(f"UPDATE ems_claim SET deadline_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND WHERE {claim_sql}")


def test_crashes_narrow_the_suspicion_down_and_only_the_third_charges(stream: Stream) -> None:
    topic, group, me = filled(stream, 6)
    claim = stream.take(topic, group, me)
    progress.flush(stream.session, flush_of(claim, topic, 2))
    assert stream.recover() == []
    clients.deregister(stream.session, [me])
    assert [(one.charged, one.outcome, one.client_id) for one in stream.recover()] == [(None, Outcome.ORPHANED, me)]
    assert stream.claims(group) == [(1, 2, 2, "done", me, 0), (3, 6, 2, "waiting", None, 1)]
    second = stream.client()
    adopted = claims.take_waiting(stream.session, stream.claimant(topic, group, second))
    assert adopted
    assert (adopted.isolation, adopted.acked_to, offsets(adopted)) == (Isolation.FEW, 2, [3, 4, 5, 6])
    progress.flush(stream.session, flush_of(adopted, topic, 3))
    clients.deregister(stream.session, [second])
    assert [one.charged for one in stream.recover()] == [None]
    assert [row[:4] for row in stream.claims(group)] == [(1, 2, 2, "done"), (3, 3, 3, "done"), (4, 6, 3, "waiting")]
    third = stream.client()
    alone = claims.take_waiting(stream.session, stream.claimant(topic, group, third))
    assert (alone.isolation, offsets(alone)) == (Isolation.ALONE, [4])
    progress.flush(stream.session, flush_of(alone, topic, 3, running=4))
    clients.deregister(stream.session, [third])  # as the supervisor does that sees it die
    assert [one.charged for one in stream.recover()] == [4]
    assert stream.retries(group) == [(4, 1, False, 2)]
    assert stream.rows("SELECT `offset`, attempt, outcome, client_id FROM ems_attempt") == [(4, 1, "orphaned", third)]
    assert [row[:4] for row in stream.claims(group)] == [(1, 2, 2, "done"), (3, 3, 3, "done"), (5, 6, 4, "waiting")]
    assert stream.recover() == []


def test_what_waited_while_its_process_died_of_a_message_alone_is_no_more_suspect_than_before(stream: Stream) -> None:
    topic, group, me = filled(stream, 6)
    flush = flush_of(stream.take(topic, group, me), topic, 0, finished=True)
    progress.give_back(stream.session, flush, 0, Isolation.ALONE)
    dies, waits = (new_client_id("h") for _ in range(2))  # of this process
    other = stream.client()
    clients.register(stream.session, [dies, waits], "p", "test", 60)
    alone = claims.take_waiting(stream.session, stream.claimant(topic, group, dies))
    for client_id, batch in ((waits, 2), (other, 1)):
        assert claims.take_waiting(stream.session, stream.claimant(topic, group, client_id, batch))
    assert alone
    progress.flush(stream.session, flush_of(alone, topic, 0, running=1))
    clients.deregister(stream.session, [dies, waits, other])
    assert sorted((one.client_id, one.charged) for one in stream.recover()) == sorted(
        [(dies, 1), (waits, None), (other, None)]
    )
    waiting = {row[0]: row[5] for row in stream.claims(group) if row[3] == "waiting"}
    assert waiting[2] == Isolation.ALONE and waiting[3] == Isolation.LONGER


def test_a_message_under_suspicion_that_had_not_started_is_not_charged(stream: Stream) -> None:
    topic, group, me = filled(stream, 2)
    stream.take(topic, group, me)
    for _ in range(3):
        clients.deregister(stream.session, [me])  # as its supervisor does; a lease that ran out charges nobody anyway
        assert [one.charged for one in stream.recover()] == [None]
        me = stream.client()
        claims.take_waiting(stream.session, stream.claimant(topic, group, me))
    assert stream.retries(group) == []


def test_a_stuck_claim_is_charged_and_its_rest_is_not(stream: Stream) -> None:
    topic, group, me = filled(stream, 5)
    claim = stream.take(topic, group, me)
    stream.rows("UPDATE ems_message SET kind = 'tombstone' WHERE `offset` = 1")
    _run_out(stream, "state = 'start'")
    assert [(one.charged, one.outcome) for one in stream.recover()] == [(2, Outcome.TIMEOUT)]
    assert stream.claims(group) == [(3, 5, 2, "waiting", None, 0)]
    assert stream.rows("SELECT `offset`, outcome FROM ems_attempt") == [(2, "timeout")]
    with pytest.raises(FenceLost):
        progress.flush(stream.session, flush_of(claim, topic, 5))


def test_a_poison_that_is_charged_too_often_dies_and_the_log_names_it(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    topic, _, me = filled(stream, 1)
    group = stream.group(topic, "once", max_attempts=1)
    (message,) = stream.take(topic, group, me).messages
    _run_out(stream, "state = 'start'")
    recovery.recover_claims(stream.session, Settings())
    assert (
        f"recovered a claim of {me} (offset 1 of {topic.name}/0, group once): timeout, message 1 charged" in caplog.text
    )
    assert (
        f"attempt 1 of 1 timed out, now a dead letter: TimeLimitExceeded: ran past the timeout ({topic.name}/0@1, group once, {message.id})"
        in (caplog.text)
    )
    assert stream.rows("SELECT `offset`, reason, body FROM ems_dead") == [(1, "used up its 1 attempt", b"1")]
    assert stream.retries(group) == []


def _call(stream: Stream, *tasks: str) -> tuple[Topic, Group]:
    """One call of each of these tasks, in a group whose ladder is the wrong one for all of them."""
    app = stream.app()
    for task in tasks:
        app.publisher.send("t", [[], {}], headers={TASK_HEADER: task})
    topic = app.stream.catalog.topic("t")
    return topic, stream.group(topic, ladder="1h", max_attempts=16)


def _retries_due_in(stream: Stream) -> list[tuple[int, int, int]]:
    return stream.rows(
        "SELECT `offset`, attempt, ROUND(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), due_at) / 6e7) FROM ems_retry "
        "ORDER BY `offset`"
    )


def test_a_run_that_hung_is_charged_by_its_own_tasks_ladder(stream: Stream) -> None:
    topic, group = _call(stream, "slow", "other", "slow")
    handlers.declare(stream.session, group.id, [HandlerRow("slow", "retry", "5m", 2), HandlerRow("z", "dead", None, 1)])
    for found in ([(1, 1, 5)], [(1, 1, 5), (2, 1, 60)], [(1, 1, 5), (2, 1, 60), (3, 1, 5)]):
        me = stream.client()
        claimant = stream.claimant(topic, group, me)
        assert claims.take_waiting(stream.session, claimant) or claims.take_range(stream.session, claimant, 0)
        _run_out(stream, "state = 'start'")
        assert [one.outcome for one in stream.recover()] == [Outcome.TIMEOUT]
        assert _retries_due_in(stream) == found, "the second task's row is missing: it has the group's"
    stream.make_due()
    stream.rows("DELETE FROM ems_retry WHERE `offset` > 1")
    assert claims.take_retries(stream.session, stream.claimant(topic, group, stream.client()))
    _run_out(stream, "state = 'start'")
    assert [one.charged for one in stream.recover()] == [1]
    assert stream.rows("SELECT `offset`, attempts, reason FROM ems_dead") == [(1, 2, "used up its 2 attempts")]


@pytest.mark.parametrize("order", ["none", "key"])
def test_retries_whose_owner_died_are_charged_by_their_own_task(stream: Stream, order: str) -> None:
    topic, group = _call(stream, "quick")
    stream.rows("UPDATE ems_group SET ordering = %s", order)
    group = dataclasses.replace(group, order=Order(order))
    handlers.declare(stream.session, group.id, [HandlerRow("quick", "retry", "5m", 3)])
    rows.add_retry(stream.rows, group.id, 1, isolation=2)
    rows.set_cursor(stream.rows, 2)
    me = stream.client()
    claimant = stream.claimant(topic, group, me)
    claim = (
        claims.take_retries(stream.session, claimant)
        if order == "none"
        else ordered.take_next(stream.session, claimant, 0)
    )
    assert claim and claim.isolation is Isolation.ALONE
    progress.flush(stream.session, flush_of(claim, topic, 0, running=1, finished=False))
    clients.deregister(stream.session, [me])
    assert [one.charged for one in stream.recover()] == [1]
    assert _retries_due_in(stream) == [(1, 2, 5)]


def test_what_is_known_of_handlers_follows_the_workers_that_started_last(stream: Stream) -> None:
    app, _ = stream.app(), stream.app()
    topic = stream.topic()
    group = stream.group(topic)
    app.task(name="own", topic="t", group="g", ladder="0.25s 1m", max_attempts=2, on_error="dead")(print)
    app.task(name="plain", topic="t", group="g")(print)
    declare_handlers(app.stream, group, app.registry.routes["t", "g"])
    known = {
        "own": HandlerRow("own", "dead", "250ms 1m", 2),
        "plain": HandlerRow("plain", "retry", None, None),
    }
    assert handlers.list_handlers(stream.session, group.id) == known
    writes = stream.status("Com_insert")
    declare_handlers(app.stream, group, app.registry.routes["t", "g"])
    assert stream.status("Com_insert") == writes, "nothing is written where nothing has changed"
    newer = stream.app()
    newer.task(name="own", topic="t", group="g", max_attempts=9)(print)
    declare_handlers(newer.stream, group, newer.registry.routes["t", "g"])
    known["own"] = HandlerRow("own", "retry", None, 9)
    assert handlers.list_handlers(stream.session, group.id) == known, "an older version may still run the other one"
    listener = stream.app()
    listener.subscribe("t", "g", max_attempts=7)(print)
    declare_handlers(listener.stream, group, listener.registry.routes["t", "g"])
    assert handlers.list_handlers(stream.session, group.id) == {"": HandlerRow("", "retry", None, 7)}
    topics.delete_group(stream.session, group)
    assert stream.rows("SELECT * FROM ems_handler") == []


def test_a_claim_of_retries_is_recovered_likewise(stream: Stream) -> None:
    topic, group, me = with_retries(stream, 3)
    claim = claims.take_retries(stream.session, stream.claimant(topic, group, me))
    assert claim
    progress.flush(stream.session, flush_of(claim, topic, 1, done_offsets=[(1, 2, 7)]))
    clients.deregister(stream.session, [me])
    assert [one.charged for one in stream.recover()] == [None]
    assert stream.retries(group) == [(2, 1, False, 2), (3, 1, False, 2)]
    second = stream.client()
    alone = claims.take_retries(stream.session, stream.claimant(topic, group, second))
    assert alone
    assert (alone.isolation, len(alone.messages)) == (Isolation.ALONE, 1), "a retry under suspicion is taken alone"
    suspect = alone.messages[0].offset
    progress.flush(stream.session, flush_of(alone, topic, suspect - 1, running=suspect, finished=False))
    clients.deregister(stream.session, [second])
    assert [one.charged for one in stream.recover()] == [suspect]
    assert [row[:2] for row in stream.retries(group) if row[0] == suspect] == [(suspect, 2)]
    third = claims.take_retries(stream.session, stream.claimant(topic, group, stream.client()))
    assert third
    assert offsets(third) == [5 - suspect]
    _run_out(stream, "source = 'retry'")
    assert [(one.charged, one.outcome) for one in stream.recover()] == [(5 - suspect, Outcome.TIMEOUT)]
    assert stream.value("SELECT COUNT(*) FROM ems_claim WHERE source = 'retry'") == 0


def test_a_deleted_groups_claims_are_swept(stream: Stream) -> None:
    topic, group, me = filled(stream, 3)
    stream.take(topic, group, me)
    stream.rows("DELETE FROM ems_group")
    stream.expire(me)
    assert stream.recover() == []
    assert stream.claims(group) == []


def test_the_leases_of_a_process_are_renewed_without_their_ids(stream: Stream) -> None:
    ids = [new_client_id("10.0.0.1") for _ in range(3)]
    for client_id, process in zip(ids, "ppq", strict=True):
        clients.register(stream.session, [client_id], process, "w", 5.0)
    stream.expire(ids[1])
    assert clients.renew_process(stream.session, "p", 60.0) == 1
    left = "SELECT client_id FROM ems_client WHERE expires_at > NOW(6) + INTERVAL 30 SECOND"
    assert stream.rows(left) == [(ids[0],)], "one that has run out has another owner by now"


def test_leases_run_out_by_the_servers_clock(stream: Stream) -> None:
    ids = [f"c{n}" for n in range(3)]
    clients.register(stream.session, ids, "p", "test", 30.0)
    assert clients.renew(stream.session, ids, 30.0)
    stream.expire("c1")
    assert not clients.renew(stream.session, ids, 30.0)
    assert [row.alive for row in clients.list_clients(stream.session)] == [1, 0, 1]
    assert clients.delete_expired(stream.session) == 1
    assert not clients.renew(stream.session, ids, 30.0)
    clients.deregister(stream.session, ["c0"])
    assert clients.delete_process(stream.session, "p") == 1
    assert clients.list_clients(stream.session) == []


def test_a_client_that_left_work_behind_stays_until_it_is_recovered(stream: Stream) -> None:
    topic, group, me = filled(stream, 3)
    stream.take(topic, group, me)
    stream.expire(me)
    assert clients.delete_expired(stream.session) == 0
    stream.recover()
    assert clients.delete_expired(stream.session) == 1


def test_a_claim_whose_client_was_deregistered_is_an_orphan(stream: Stream) -> None:
    topic, group, me = filled(stream, 3)
    stream.take(topic, group, me)
    clients.deregister(stream.session, [me])
    assert [one.charged for one in stream.recover()] == [None]
    assert stream.claims(group) == [(1, 3, 0, "waiting", None, 1)]


def test_flushes_with_failures_and_bodies_of_any_kind(stream: Stream) -> None:
    app = stream.app()
    bodies: list[Any] = ["'; DROP TABLE ems_retry; --", "%s %(a)s %%", b"\x00'\\\xff", ""]
    app.send_many("t", bodies)
    topic = app.stream.catalog.topic("t")
    group, me = stream.group(topic), stream.client()
    claim = stream.take(topic, group, me)
    assert [message.body for message in claim.messages] == bodies
    nasty = [dataclasses.replace(failed(n), error=str(bodies[n - 1])) for n in (1, 2, 3, 4)]
    progress.flush(stream.session, flush_of(claim, topic, 4, failures=nasty))
    found = [row[0] for row in stream.rows("SELECT last_error FROM ems_retry ORDER BY `offset`")]
    assert found == [str(body) for body in bodies]


def test_a_dead_letter_of_the_beat_reaches_the_hooks_of_one_process(stream: Stream) -> None:
    topic, group = _call(stream, "slow")
    handlers.declare(stream.session, group.id, [HandlerRow("slow", "retry", "5m", 1)])
    stream.take(topic, group, stream.client())
    _run_out(stream, "state = 'start'")
    assert [one.charged for one in stream.recover()] == [1]
    assert stream.rows("SELECT task, error_type FROM ems_dead") == [("slow", "TimeLimitExceeded")]
    told: list[tuple[Any, ...]] = []

    def on_dead(message: Message, group: str, error: BaseException, reason: str) -> None:
        told.append((message.topic, message.headers[TASK_HEADER], message.body, group, type(error), str(error), reason))
        raise RuntimeError("a hook that fails")

    for _ in range(2):  # the second process finds nothing
        app = stream.app()
        notices = DeadNotices(app.stream.channel(), {group.id: ("t", "g")}, (on_dead,), Decoder(), 0.0, print)
        notices.step()
        notices.shut_down()
    expected = ("t", "slow", [[], {}], "g", TimeLimitExceeded, "ran past the timeout", "used up its 1 attempt")
    assert told == [expected]
    assert stream.rows("SELECT * FROM ems_dead_notice") == []


_HOSTILE = (
    b"", b"{}", b"[1]", b"nonsense", b'{"ems-task": 5}', b'{"ems-task": null}', b'{"ems-task": {"a": [1]}}', b'\xff\xfe',
    b'{"ems-task": "\\ud800"}', b'{"ems-task": "' + b"x" * 400 + b'"}', '{"ems-task": "ünï"}'.encode(), b'{"ems-task": "a\\u0000b"}',
    b"[" * 5000, b'{"ems-task": "a", "ems-task": "b"}', '{"ems-task": "\U0001f40d"}'.encode(),
)  # fmt: skip


def test_damaged_headers_keep_no_message_from_becoming_a_dead_letter(stream: Stream) -> None:
    topic, group, me = filled(stream, len(_HOSTILE))
    for offset, headers in enumerate(_HOSTILE, 1):
        stream.rows("UPDATE ems_message SET headers = %s WHERE `offset` = %s", headers, offset)
    claim = stream.take(topic, group, me)
    failures = [failed(offset, dead="no more") for offset in range(1, len(_HOSTILE) + 1)]
    failures[0] = dataclasses.replace(failures[0], error_type="x" * 500 + "\ud800")
    progress.flush(stream.session, flush_of(claim, topic, claim.hi, failures=failures))
    found = dict(stream.rows("SELECT `offset`, task FROM ems_dead"))
    assert len(found) == len(_HOSTILE)
    assert found[11] == "ünï" and found[10] == "x" * 190 and found[2] == found[4] == ""


def test_a_worker_that_is_gone_with_its_machine_charges_nobody_for_a_while(stream: Stream) -> None:
    topic, group, me = filled(stream, 1)
    assert stream.take(topic, group, me)
    charged = []
    for _ in range(7):
        stream.expire(me)
        charged += [one.charged for one in stream.recover()]
        me = stream.client()
        claim = claims.take_waiting(stream.session, stream.claimant(topic, group, me))
        if not claim:
            break
        progress.flush(stream.session, flush_of(claim, topic, 0, running=1 if claim.isolation.alone else None))
    assert charged == [None] * 5 + [1], "five deaths prove nothing; the sixth ends it"
    assert stream.retries(group) == [(1, 1, False, int(Isolation.LAST))]
