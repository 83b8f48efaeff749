"""Resetting a group's cursor: only that group, and nothing in two places."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from emsworker.admin import Admin
from emsworker.core.errors import ConfigError, FenceLost, UnknownGroup
from emsworker.core.model import Group, Topic
from emsworker.store import topics
from emsworker.store.engine.schema import server_now
from emsworker.store.groups import claims, cursors, dead, progress
from tests.support import rows
from tests.support.streams import Stream, failed, flush_of, offsets, wait_until

_WAITING = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE '%ems_retry%' AND id <> CONNECTION_ID()"


@pytest.fixture
def group(stream: Stream) -> Group:
    """A group of a topic with 20 messages, born a minute apart."""
    topic = stream.topic()
    stream.app().send_many("t", range(20))
    stream.rows("UPDATE ems_message SET born_at = UTC_TIMESTAMP(6) - INTERVAL 1200 - 60 * `offset` SECOND")
    return stream.group(topic)


@pytest.fixture
def topic(stream: Stream, group: Group) -> Topic:
    return Admin(stream.app()).topic("t")


def test_every_kind_of_place(stream: Stream, group: Group) -> None:
    admin = Admin(stream.app())
    other = stream.group(admin.topic("t"), "other")
    half = (server_now(stream.session) - timedelta(seconds=610)).replace(tzinfo=None).isoformat()
    for to, cursor in (
        ("latest", 21),
        ("earliest", 1),
        ("7", 7),
        ("-3", 18),
        (half, 10),
        ("2000-01-01", 1),
        ("21", 21),
    ):
        before = stream.cursor(group)
        planned = admin.reset_group("t", "g", to, dry_run=True)
        assert stream.cursor(group) == before, "a dry run changes nothing"
        assert admin.reset_group("t", "g", to) == planned
        assert stream.cursor(group) == cursor, to
    assert stream.cursor(other) == 1
    assert stream.rows("SELECT lo, hi, reason FROM ems_skip ORDER BY skipped_at") == [
        (1, 20, "reset"),
        (1, 6, "reset"),
        (7, 17, "reset"),
        (1, 20, "reset"),
    ]
    for wrong in ("22", "0", "soon", "-", "1.5"):
        with pytest.raises(ConfigError, match="to"):
            admin.reset_group("t", "g", wrong)
    with pytest.raises(ConfigError, match="partition"):
        admin.reset_group("t", "g", "latest", partition=1)


def test_back_takes_work_away_from_its_owners(stream: Stream, group: Group, topic: Topic) -> None:
    me, you = stream.client(), stream.client()
    first = stream.take(topic, group, me, 8)
    progress.flush(stream.session, flush_of(first, topic, 3, failures=[failed(2)]))
    second = stream.take(topic, group, you, 6)
    progress.flush(stream.session, flush_of(second, topic, 10, failures=[failed(9), failed(10, retry_in_s=900.0)]))
    stream.make_due()
    retry = claims.take_retries(stream.session, stream.claimant(topic, group, me))
    assert retry and offsets(retry) == [2, 9, 10]
    assert cursors.reset(stream.session, group, 0, 6, "test") == 6 - 15
    for lost, acked_to in ((first, 8), (second, 14), (retry, 10)):
        with pytest.raises(FenceLost):
            progress.flush(stream.session, flush_of(lost, topic, acked_to))
    assert stream.retries(group) == [(2, 1, False, 0)]
    waiting = claims.take_waiting(stream.session, stream.claimant(topic, group, me))
    assert waiting and offsets(waiting) == [4, 5]
    assert offsets(stream.take(topic, group, you)) == list(range(6, 21))
    assert stream.claims(group)[0][:4] == (1, 3, 3, "done")


def test_forward_leaves_what_is_claimed_to_its_owners(stream: Stream, group: Group, topic: Topic) -> None:
    me = stream.client()
    claim = stream.take(topic, group, me, 5)
    assert cursors.reset(stream.session, group, 0, 16, "test") == 10
    progress.flush(stream.session, flush_of(claim, topic, 5, failures=[failed(3)]))
    stream.make_due()
    retry = claims.take_retries(stream.session, stream.claimant(topic, group, me))
    assert retry and offsets(retry) == [3]
    assert offsets(stream.take(topic, group, me)) == [16, 17, 18, 19, 20]


def test_never_below_the_log_start(stream: Stream, group: Group) -> None:
    rows.trim(stream.rows, 5, deleted=False)
    assert cursors.reset(stream.session, group, 0, 1, "test") == 4
    assert stream.cursor(group) == 5


def test_a_dead_letter_that_is_delivered_again_is_dead_no_more(stream: Stream, topic: Topic, group: Group) -> None:
    me = stream.client()
    claim = stream.take(topic, group, me)
    died = [failed(n, dead="no") for n in (3, 12, 14)]
    progress.flush(stream.session, flush_of(claim, topic, 20, failures=died))
    stream.rows("UPDATE ems_message SET kind = 'cancelled' WHERE `offset` = 14")
    assert cursors.reset(stream.session, group, 0, 10, "reset") == -11
    assert stream.rows("SELECT `offset` FROM ems_dead ORDER BY `offset`") == [(3,), (14,)], "14 is not delivered again"
    again = stream.take(topic, group, me)
    progress.flush(stream.session, flush_of(again, topic, 20, failures=[failed(12)]))
    assert dead.requeue(stream.session, group, [(0, 3), (0, 12), (0, 14)], lambda _: None) == 1
    assert [row[0] for row in stream.retries(group)] == [3, 12]


def test_a_reset_waits_for_a_claim_of_retries_that_is_being_made(stream: Stream, topic: Topic, group: Group) -> None:
    """Or its owner would end, and put back, what is behind the new cursor."""
    me, claim_id = stream.client(), 4711
    claim = stream.take(topic, group, me)
    progress.flush(stream.session, flush_of(claim, topic, 20, failures=[failed(12)]))
    with stream.other() as other, other.cursor() as cursor, ThreadPoolExecutor(1) as pool:
        cursor.execute("UPDATE ems_retry SET claim_id = %s", (claim_id,))
        with stream.new_session() as session:
            moved = pool.submit(cursors.reset, session, group, 0, 10, "reset")
            try:
                wait_until(lambda: stream.value(_WAITING), what="the reset waits")
            finally:
                rows.add_claim(
                    lambda text, *values: cursor.execute(text, values),
                    *(group.id, 12, 12),
                    claim_id=claim_id,
                    source="retry",
                    client_id=me,
                    left_s=3600,
                )
                other.commit()
            assert moved.result(30) == -11
    assert stream.retries(group) == [] and stream.claims(group)[1:] == []


def test_a_group_that_was_deleted_meanwhile_is_named(stream: Stream, group: Group) -> None:
    topics.delete_group(stream.session, group)
    with pytest.raises(UnknownGroup, match=f"{group.name!r} was deleted meanwhile"):
        cursors.reset(stream.session, group, 0, 5, "by hand")
