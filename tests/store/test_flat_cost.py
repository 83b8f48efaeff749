"""Promise 7: nothing scans a table that grows. Counted in rows that the server reads, and seen in its plans."""

from collections.abc import Callable
from typing import Any

import pytest

from emsworker.arrow import scan
from emsworker.beat import recovery
from emsworker.core.ids import new_uid
from emsworker.core.model import Group, Topic
from emsworker.store import topics
from emsworker.store.cluster import clients
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements
from emsworker.store.groups import claims, cursors
from emsworker.store.inspect import monitoring, trace
from emsworker.store.stream import broadcast, high_watermark, messages, outbox, search
from tests.support.statements import statements_of
from tests.support.streams import Stream

ROWS = 100_000
BATCH = 20
OF_ALL = {name: "" for name in ("where_c", "and_c", "where_group", "and_group", "where_topic")}  # groups and topics
_NUMBERS = "(SELECT 0 AS n" + "".join(f" UNION ALL SELECT {n}" for n in range(1, 10)) + ")"
SEQUENCE = (
    "(SELECT 1 + a.n + 10 * b.n + 100 * c.n + 1000 * d.n + 10000 * e.n AS n "
    f"FROM {_NUMBERS} a, {_NUMBERS} b, {_NUMBERS} c, {_NUMBERS} d, {_NUMBERS} e) s"
)


def fill(stream: Stream, topic: Topic, done: Group, retrying: Group) -> None:
    """100,000 messages, claims that are done, and due retries; a few waiting and live claims."""
    stream.rows("SET SESSION unique_checks = 0")
    stream.rows(
        "INSERT INTO ems_message (topic_id, `partition`, `offset`, uid, headers, body, size, born_at) "
        f"SELECT {topic.id}, 0, n, UNHEX(LPAD(HEX(n), 32, '0')), '', '1', 1, NOW(6) FROM {SEQUENCE} ORDER BY n"
    )
    head = (
        "INSERT INTO ems_claim (group_id, `partition`, lo, claim_id, hi, acked_to, state, source, client_id, claimed_at,"
        " progress_at, deadline_at) SELECT "
    )
    tail = "'stream', 'nobody', NOW(6), NOW(6), NOW(6)"
    stream.rows(f"{head}{done.id}, 0, n, n, n, n, 'done', {tail} FROM {SEQUENCE} ORDER BY n")
    stream.rows(f"{head}{done.id}, 0, 200000 + n, n, 200000 + n, 0, 'waiting', {tail} FROM {_NUMBERS} s")
    stream.rows(
        "INSERT INTO ems_retry (group_id, `partition`, `offset`, attempt, due_at) "
        f"SELECT {retrying.id}, 0, n, 1, NOW(6) - INTERVAL n SECOND FROM {SEQUENCE} ORDER BY n"
    )
    stream.rows(f"UPDATE ems_cursor SET next_offset = 50000 WHERE group_id = {done.id}")
    stream.rows(f"UPDATE ems_partition SET high_watermark = {ROWS - BATCH}")
    stream.rows(
        "INSERT INTO ems_outbox (topic_id, due_at, uid, headers, body, producer_id, created_at) "
        f"SELECT {topic.id}, NOW(6) + INTERVAL n MINUTE, UNHEX(LPAD(HEX(n), 32, '0')), '', '1', 'p', NOW(6) FROM {SEQUENCE}"
    )


def reads(session: Session, work: Callable[[], Any]) -> int:
    """How many rows and index entries the server read for ``work``."""

    def count() -> int:
        return sum(int(value) for _, value in session.rows("SHOW SESSION STATUS LIKE 'Handler_read%'"))

    before = count()
    work()
    own = count() - before
    return own - (lambda first: count() - first)(count())  # SHOW STATUS reads rows itself


@pytest.fixture
def hot(stream: Stream) -> dict[str, Callable[[], Any]]:
    """The statements that run all the time, on tables that have grown."""
    topic = stream.topic()
    done, retrying = stream.group(topic, "done"), stream.group(topic, "retrying")
    me = stream.client()
    stream.rows("ANALYZE TABLE ems_message, ems_claim, ems_retry, ems_client, ems_cursor, ems_group")
    fill(stream, topic, done, retrying)
    session = stream.session
    uids = [new_uid() for _ in range(BATCH)]
    return {
        "find_work": lambda: claims.find_work(session, [done.id, retrying.id]),
        "find_new": lambda: claims.find_new(session, [done.id, retrying.id], [topic.id]),
        "find_new and other": lambda: claims.find_new(session, [done.id, retrying.id], [topic.id], also_other=True),
        "take_range": lambda: claims.take_range(session, stream.claimant(topic, done, me, BATCH), 0),
        "take_waiting": lambda: claims.take_waiting(session, stream.claimant(topic, done, me, BATCH)),
        "take_retries": lambda: claims.take_retries(session, stream.claimant(topic, retrying, me, BATCH)),
        "recover": lambda: recovery.recover(session, 0.0, 0.0),
        "delete_expired": lambda: clients.delete_expired(session),
        "find_uids": lambda: messages.find_uids(session, topic.id, uids),
        "next_free_offset": lambda: messages.next_free_offset(session, topic.id, 0),
        "close_hole": lambda: messages.close_hole(session, topic.id, done.id, 0, 1.0),
        "count_unfinished": lambda: topics.count_unfinished(session, done),
        "find_due": lambda: outbox.find_due(session, plain=True),
        "advance": lambda: high_watermark.advance(session),
    }


@pytest.fixture
def ends(stream: Stream, hot: dict[str, Callable[[], Any]]) -> dict[str, Callable[[], Any]]:
    """All that asks where a partition ends, on the same tables."""
    session = stream.session
    (topic,) = topics.list_topics(session)
    group = topics.list_groups(session)[0]
    where = {"topic_id": topic.id, "partition": 0}
    return {
        "scan": lambda: scan.list_bounds(session, topic.id),
        "search": lambda: search.list_extents(session, topic.id),
        "trace": lambda: trace.get_bounds(session, topic.id, 0),
        "cursors": lambda: cursors.list_positions(session, group),
        "extents": lambda: monitoring.list_extents(session),
        "positions": lambda: session.rows(Statements("emsworker.store.inspect.monitoring", **OF_ALL).list_positions),
        "readers": lambda: broadcast.list_positions(session, None),
        "extent": lambda: session.rows(statements_of("topics").get_extent, where),
        "unfinished": lambda: session.rows(statements_of("cancel").find_unfinished_from, where),
    }


def test_flat_cost_of_every_hot_statement(stream: Stream, hot: dict[str, Callable[[], Any]]) -> None:
    limit = 40 * BATCH
    for state in ("with the statistics of an empty table", "with fresh statistics"):
        found = {name: reads(stream.session, work) for name, work in hot.items()}
        too_many = {name: number for name, number in found.items() if number > limit}
        assert not too_many, f"{state}: {too_many} rows read"
        stream.rows("ANALYZE TABLE ems_message, ems_claim, ems_retry, ems_client, ems_cursor, ems_group")


def test_flat_cost_of_where_a_partition_ends(stream: Stream, ends: dict[str, Callable[[], Any]]) -> None:
    found = {name: reads(stream.session, work) for name, work in ends.items()}
    assert max(found.values()) < 10 * BATCH, f"{found} rows read"


def test_flat_cost_in_the_servers_plans(stream: Stream, hot: dict[str, Callable[[], Any]]) -> None:
    stream.rows("ANALYZE TABLE ems_message, ems_claim, ems_retry")
    sql = statements_of("claims")
    args: dict[str, Any] = {"group_ids": [1, 2], "group_id": 2, "topic_id": 1, "partition": 0, "batch": BATCH}
    args |= {"batch_bytes": 1 << 20, "client_id": "c", "claim_id": 7}
    stream.session.send("SET @ems_lo = 50000, @ems_p = 0, @ems_isolation = 0, @ems_old = 1")
    statements = {
        "find_work": sql.find_work,
        "find_range": sql.find_range.replace("INTO @ems_hi", ""),
        "take_due_retries": sql.take_due_retries,
        "leave_large_retries": sql.leave_large_retries,
        "find_lost": statements_of("recovery").find_lost,
    }
    grown = {"ems_message", "m", "ems_retry", "r", "c"}  # r is a derived table in one place, c a cursor in another
    for name, statement in statements.items():
        for row in stream.explain(statement, args):
            if row["table"] in grown and row["type"] in ("ALL", "index"):
                assert row["rows"] <= 10 * BATCH, f"{name}: {row}"
