"""Lists in pages: complete, in order, and of flat cost, also at their end; dead letters by task and error; samples."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from emsworker.admin import Admin
from emsworker.admin.dead import DeadFilter
from emsworker.admin.monitoring import Monitoring
from emsworker.admin.paging import Listing, encode_token
from emsworker.beat.samples import TakeSamples, prune_samples
from emsworker.core.config import Settings
from emsworker.core.errors import ConfigError, UnknownGroup, UnknownTopic
from emsworker.core.model import Group, Topic
from emsworker.store.engine.database import Database
from emsworker.store.engine.schema import server_now
from emsworker.store.engine.session import Session
from emsworker.store.groups import claims, progress
from emsworker.store.inspect import samples
from emsworker.store.inspect.samples import find_round
from tests.store.test_flat_cost import SEQUENCE, reads
from tests.support.streams import Stream, failed, flush_of

ROWS = 6_000
LIMIT = 50
MOST_READS = 12 * LIMIT
DEAD = (
    "INSERT INTO ems_dead (group_id, `partition`, `offset`, uid, headers, body, born_at, producer_id, dead_at, attempts, "
    "task, error_type, reason, error) SELECT {group}, n %% 2, n, UNHEX(LPAD(HEX(n), 32, '0')), '', '1', NOW(6), 'p', "
    "NOW(6) - INTERVAL n SECOND, 3, IF(n %% 10 = 0, 'pay', 'ship'), IF(n %% 4 = 0, 'KeyError', 'ValueError'), 'no', 'oh no'"
)


def _fill(stream: Stream) -> tuple[Topic, Topic, Group, Group]:
    """Two topics; 6,000 delayed messages, retries and dead letters of one topic and group, and a few of others."""
    topic, other = stream.topic(partitions=2), stream.topic("u")
    many, few = stream.group(topic, "many"), stream.group(topic, "few")
    for place, count in ((topic, ROWS), (other, 3)):
        stream.rows(
            "INSERT INTO ems_outbox (topic_id, due_at, uid, headers, body, producer_id, created_at) SELECT "
            f"{place.id}, NOW(6) + INTERVAL n MINUTE, UNHEX(LPAD(HEX(n), 32, '0')), %s, '1', 'p', NOW(6) "
            f"FROM {SEQUENCE} WHERE n <= {count}",
            b'{"ems-task":"later"}',
        )
    for group, count in ((many, ROWS), (few, 3)):
        stream.rows(
            "INSERT INTO ems_retry (group_id, `partition`, `offset`, attempt, due_at, last_error) SELECT "
            f"{group.id}, n %% 2, n, 1, IF(n <= {count} / 2, NOW(6) + INTERVAL n SECOND, '9999-01-01'), 'oh no' "
            f"FROM {SEQUENCE} WHERE n <= %s",
            count,
        )
        stream.rows(f"{DEAD.format(group=group.id)} FROM {SEQUENCE} WHERE n <= %s", count)
    stream.rows(
        "INSERT INTO ems_message (topic_id, `partition`, `offset`, uid, kind, headers, body, size, born_at) SELECT "
        f"{topic.id}, n %% 2, (n + 1) DIV 2, UNHEX(LPAD(HEX(n), 32, '0')), IF(n > 100, 'cancelled', 'message'), '', '1', 1, NOW(6) "
        f"FROM {SEQUENCE} WHERE n <= %s",
        ROWS,
    )
    _analyze(stream)
    return topic, other, many, few


def _analyze(stream: Stream) -> None:
    stream.rows("ANALYZE TABLE ems_outbox, ems_retry, ems_dead, ems_message, ems_group, ems_cursor, ems_partition")


def _least_cost(stream: Stream, session: Session, work: Callable[[], Any]) -> int:
    """How many rows it reads with good statistics: a thread of the server may write older ones after ours."""
    for _ in range(5):
        cost = reads(session, work)
        if cost < MOST_READS:
            break
        _analyze(stream)
    return cost


def _walk(listed: Callable[..., Listing[Any]], limit: int) -> tuple[list[Any], str | None]:
    """All rows of a list, and the token of its last full page."""
    rows, after, last = [], None, None
    while True:
        page = listed(after=after, limit=limit)
        rows += page.rows
        last, after = after, page.after
        if after is None:
            return rows, last


def test_pages_are_complete_in_order_and_cost_the_same_at_the_end(stream: Stream) -> None:
    _fill(stream)
    database = Database(stream.url)
    admin, session = Admin(database), database.thread_session()
    lists, dead = admin.lists, admin.dead
    found: dict[str, tuple[Callable[..., Listing[Any]], int, Callable[[Any], Any]]] = {
        "delayed": (lists.delayed, ROWS + 3, lambda one: one.due_at),
        "delayed of one": (lambda **page: lists.delayed("t", details=True, **page), ROWS, lambda one: one.due_at),
        "retries": (lists.retries, ROWS + 3, lambda one: (one.due_at is None, one.due_at)),
        "messages": (lambda **page: lists.messages("t", **page), ROWS, lambda one: (-one.partition, -one.offset)),
        "oldest": (
            lambda **page: lists.messages("t", 1, newest=False, **page),
            ROWS // 2,
            lambda one: (one.partition, one.offset),
        ),
        "dead": (dead.page, ROWS + 3, lambda one: -one.dead_at.timestamp()),
        "dead of a task": (
            lambda **page: dead.page(DeadFilter(task="pay"), **page),
            ROWS // 10,
            lambda one: -one.dead_at.timestamp(),
        ),
        "dead of both": (
            lambda **page: dead.page(DeadFilter("t", "many", "ship", "KeyError"), details=True, **page),
            ROWS // 5,
            lambda one: -one.dead_at.timestamp(),
        ),
    }
    for name, (listed, count, order) in found.items():
        rows, last = _walk(listed, 1000)
        assert len(rows) == count, name
        places = {
            (one.topic, *(getattr(one, name, "") for name in ("group", "partition", "offset")), one.id) for one in rows
        }
        assert len(places) == count, name
        assert [order(one) for one in rows] == sorted(order(one) for one in rows), name
        for after in (None, last):
            cost = _least_cost(stream, session, lambda listed=listed, after=after: listed(after=after, limit=LIMIT))
            assert cost < MOST_READS, (name, after, cost)
    assert lists.delayed("t", details=True, limit=1).rows[0].task == "later"
    assert lists.retries("t", "few", details=True).rows[0].error == "oh no"
    assert lists.retries("t", "few").rows[0].error is None is dead.page(limit=1).rows[0].error
    assert admin.dead.page(DeadFilter(group="few"), details=True).rows[0].reason == "no"

    counted = {(one.group, one.task, one.error_type): (one.count, one.capped) for one in dead.classes(most=1000)}
    assert counted["many", "ship", "ValueError"] == (1000, True)
    assert counted["many", "pay", "KeyError"] == (ROWS // 20, False)
    assert counted["few", "ship", "ValueError"] == (3, False) and len(counted) == 5
    assert _least_cost(stream, session, lambda: dead.classes(most=50)) < MOST_READS
    assert sum(one.count for one in dead.classes(DeadFilter(error="KeyError"))) == ROWS // 4
    since = datetime.now(UTC) - timedelta(seconds=1000.5)
    newest = dead.classes(DeadFilter(group="many", task="ship", error="KeyError", since=since))
    assert [one.count for one in newest] == [pytest.approx(200, abs=60)]  # a minute for this test
    assert _least_cost(stream, session, lambda: Monitoring(database).lag(most=50)) < MOST_READS

    assert dead.delete_all(only=DeadFilter(task="ship", error="KeyError")) == ROWS // 5
    stream.rows("DELETE FROM ems_retry")
    assert dead.requeue_all(only=DeadFilter(group="few")) == 3 == len(lists.retries().rows)
    assert dead.count("t", "many") == ROWS * 4 // 5


def test_pages_of_many_groups_leave_out_no_dead_letter_and_ask_no_group_without_one(stream: Stream) -> None:
    """Of each page, only groups with its newest letters are asked; those of one time are of several pages."""
    topic = stream.topic()
    for number in range(30):
        group = stream.group(topic, f"g{number}")
        died = "'2026-01-01' - INTERVAL n DIV 3 SECOND" if number % 2 else f"'2026-01-01' - INTERVAL {number} SECOND"
        filled = DEAD.format(group=group.id).replace("NOW(6) - INTERVAL n SECOND", died)
        stream.rows(f"{filled} FROM {SEQUENCE} WHERE n <= %s", 4)
    dead = Admin(Database(stream.url)).dead
    ordered = stream.rows(
        "SELECT g.name, d.`partition`, d.`offset`, d.error_type FROM ems_dead d JOIN ems_group g ON g.id = d.group_id "
        "ORDER BY d.dead_at DESC, d.group_id DESC, d.`partition` DESC, d.`offset` DESC"
    )
    for only in (DeadFilter(), DeadFilter(error="KeyError"), DeadFilter("t")):
        rows, _ = _walk(lambda only=only, **page: dead.page(only, **page), 7)
        expected = [row for row in ordered if only.error in (None, row[3])]
        assert [(one.group, one.partition, one.offset, one.error_type) for one in rows] == expected, only
    assert len(dead.classes(newest=10)) == 10 < len(dead.classes()) == 60
    assert {one.count for one in dead.classes(newest=60)} == {1, 3}
    assert {(one.count, one.capped) for one in dead.classes(newest=60, most=6)} == {(1, True)}, "all cost what ten do"


def test_dead_letters_of_very_many_groups_are_counted_by_one_statement(stream: Stream) -> None:
    topic = stream.topic("crowded")
    stream.rows(
        "INSERT INTO ems_group (id, topic_id, name, timeout_ms, ladder, max_attempts, filter, created_at) "
        f"SELECT 1000 + n, {topic.id}, CONCAT('g', n), 60000, '10s', 3, '{{}}', NOW(6) FROM {SEQUENCE} WHERE n <= 300"
    )
    for letter in (1, 2):
        stream.rows(
            "INSERT INTO ems_dead (group_id, `partition`, `offset`, uid, headers, body, born_at, producer_id, dead_at, attempts, task, "
            f"error_type, reason, error) SELECT 1000 + n, 0, {letter}, UNHEX(LPAD(HEX(n), 32, '0')), '', '1', NOW(6), 'p', "
            f"'2026-01-0{letter}', 3, IF(n % 3, 'pay', 'ship'), 'KeyError', 'no', 'no' FROM {SEQUENCE} WHERE n <= 300"
        )
    dead = Admin(Database(stream.url)).dead
    for only, groups in ((DeadFilter(), 300), (DeadFilter("crowded"), 300), (DeadFilter(task="ship"), 100)):
        before = stream.status("Questions")["Questions"]
        found = dead.classes(only)
        assert stream.status("Questions")["Questions"] - before < 30
        assert (len(found), {one.count for one in found}) == (groups, {2}), only
        assert {(one.latest.day, one.capped, one.topic) for one in found} == {(2, False, "crowded")}
    assert {one.count for one in dead.classes(DeadFilter(until=datetime(2026, 1, 1, 12, tzinfo=UTC)))} == {1}


def test_what_runs_is_listed_with_its_progress(stream: Stream) -> None:
    app = stream.app()
    topic = stream.topic()
    group, other = stream.group(topic), stream.group(topic, "other")
    sent = app.send_many("t", range(10))
    me, you = stream.client(), stream.client()
    mine = stream.take(topic, group, me, batch=6)
    claims.take_range(stream.session, stream.claimant(topic, other, you, 4), 0)
    progress.flush(stream.session, flush_of(mine, topic, 2))
    stream.rows(
        "INSERT INTO ems_progress (topic_id, uid, group_id, client_id, attempt, fraction, told, reported_at) "
        "SELECT topic_id, uid, %s, %s, 1, 0.5, 'half', NOW(6) FROM ems_message WHERE `offset` = 3",
        group.id,
        me,
    )
    lists = Admin(app).lists
    first, second = lists.running().rows
    assert (first.group, first.offset, first.id, first.left, first.client_id) == ("g", 3, sent[2].id, 4, me)
    assert first.progress is not None and str(first.progress) == "50% half"
    assert (second.group, second.offset, second.left, second.progress) == ("other", 1, 4, None)
    page = lists.running(limit=1)
    assert lists.running(limit=1, after=page.after).rows == (second,)
    assert [one.group for one in lists.running("t", "other").rows] == ["other"]
    assert lists.delayed("t").rows == () == lists.retries("t").rows


def test_wrong_pages_are_refused(stream: Stream) -> None:
    stream.topic()
    admin = Admin(Database(stream.url))
    for after in (
        "nonsense",
        "W10",
        encode_token([1, 2]),
        encode_token(["' OR 1 --", 1, "00"]),
        encode_token([{}, 1, ""]),
        encode_token(["noon", 1, "00"]),
        "é",
    ):
        with pytest.raises(ConfigError, match="after"):
            admin.lists.delayed(after=after)
        with pytest.raises(ConfigError, match="after"):
            admin.dead.page(after=after)
    with pytest.raises(ConfigError, match="limit"):
        admin.lists.running(limit=0)
    with pytest.raises(ConfigError, match="partition"):
        admin.lists.messages("t", 7)
    with pytest.raises(UnknownTopic):
        admin.lists.retries("nothing")
    with pytest.raises(UnknownGroup):
        admin.dead.page(DeadFilter("t", "nobody"))
    with pytest.raises(ConfigError, match="since"):
        Monitoring(Database(stream.url)).series(since=datetime.now(UTC), until=datetime.now(UTC) - timedelta(1))


def test_spans_reach_to_the_ends_of_the_calendar(stream: Stream) -> None:
    """In whatever zone they are given, and without one in UTC."""
    app = stream.app()
    topic = stream.topic()
    group = stream.group(topic)
    app.send("t", 1)
    claim = stream.take(topic, group, stream.client())
    progress.flush(stream.session, flush_of(claim, topic, 1, failures=(failed(1, dead="no"),)))
    TakeSamples()(stream.session, Settings())
    east, west = timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))
    admin, monitoring = Admin(app), Monitoring(app)
    for since, until in (
        (datetime(1, 1, 1, tzinfo=east), datetime(9999, 12, 31, 23, tzinfo=west)),
        (datetime.min, datetime.max),
    ):
        assert len(admin.dead.page(DeadFilter(since=since, until=until)).rows) == 1
        assert [one.dead for one in monitoring.series("t", "g", since=since, until=until)] == [1]
        assert admin.dead.page(DeadFilter(since=until)).rows == admin.dead.page(DeadFilter(until=since)).rows == ()
        with pytest.raises(ConfigError, match="since"):
            monitoring.series(until=since)


def test_samples_become_a_series(stream: Stream) -> None:
    """Two samples, ten seconds apart, of a group that has run some of its messages; and many groups."""
    app, settings, take = stream.app(), Settings(), TakeSamples()
    topic = stream.topic(partitions=2)
    group = stream.group(topic)
    stream.topic("news", kind="broadcast")
    app.send_many("t", range(100), partition=0)
    assert take(stream.session, settings) >= settings.sample_s
    stream.rows("UPDATE ems_sample SET sampled_at = sampled_at - INTERVAL 10 SECOND")
    app.send_many("t", range(50), partition=1)
    claim = stream.take(topic, group, stream.client(), batch=40)
    progress.flush(stream.session, flush_of(claim, topic, 10))
    take(stream.session, settings)
    monitoring = Monitoring(app)
    lately = datetime.now(UTC) - timedelta(minutes=1)
    for place in (("t", "g"), ("t",), ()):
        series = monitoring.series(*place, since=lately)
        first, last = series
        assert (first.unclaimed, first.lag, first.running, first.in_per_s) == (100, 100, 0, None)
        assert (last.unclaimed, last.claimed, last.lag, last.running) == (110, 30, 140, 1)
        assert last.in_per_s == pytest.approx(5, rel=0.5) and last.out_per_s == pytest.approx(1, rel=0.5)
        assert last.oldest_s is not None and last.oldest_s >= 0
    latest = monitoring.rates()["t", "g"]
    assert (latest.lag, latest.in_per_s) == (140, pytest.approx(5, rel=0.5))
    assert [point.in_per_s for point in monitoring.series("news", since=lately)] == [None, 0]

    head = "INSERT INTO ems_sample SELECT 1, 999, NOW(6) - INTERVAL 10 * n SECOND, n, 0, 0, 0, 0, 0, NULL, 50000 - n, 0"
    stream.rows(f"{head} FROM {SEQUENCE} WHERE n <= 26000")
    now = datetime.now(UTC)
    points = samples.read_series(stream.session, 1, 999, now - timedelta(hours=72), now, 300)
    assert len(points) == 300 and all(point.in_per_s == pytest.approx(0.1) for point in points[1:])
    cost = reads(
        stream.session, lambda: samples.read_series(stream.session, 1, 999, now - timedelta(minutes=5), now, 300)
    )
    assert cost < 200
    assert prune_samples(stream.session, Settings(sample_keep_s=3600)) == 0.0, "there are more"
    while prune_samples(stream.session, Settings(sample_keep_s=3600)) == 0.0:
        pass
    assert stream.value("SELECT COUNT(*) FROM ems_sample WHERE group_id = 999") <= 360

    stream.rows("DELETE FROM ems_sample WHERE group_id = 999")
    stream.rows(
        "INSERT INTO ems_group (topic_id, name, timeout_ms, ladder, max_attempts, created_at) "
        f"SELECT {topic.id}, CONCAT('g', n), 1000, '1s', 3, NOW(6) FROM {SEQUENCE} WHERE n <= 1000"
    )
    stream.rows(
        "INSERT INTO ems_cursor (group_id, `partition`, next_offset) SELECT id, 0, 1 FROM ems_group WHERE name <> 'g'"
    )
    stream.rows("ANALYZE TABLE ems_group, ems_cursor")
    statements = stream.status("Com_insert")["Com_insert"]
    assert reads(stream.session, lambda: take(stream.session, settings)) < 1000 * 30
    assert stream.status("Com_insert")["Com_insert"] == statements + 1
    count = "SELECT COUNT(*) FROM ems_sample WHERE group_id > %s"
    assert stream.value(count, group.id) == 1000
    stream.rows("UPDATE ems_cursor c JOIN ems_group g ON g.id = c.group_id SET c.next_offset = 101 WHERE g.name <> 'g'")
    for rounds in range(3):
        take(stream.session, settings)
        assert stream.value(count, group.id) == 2000, f"{rounds} rounds in which all are idle"


def test_what_does_not_change_is_not_sampled_and_its_chart_is_the_same(stream: Stream) -> None:
    """Rounds ten seconds apart: a group is idle, gets messages, finishes them, and is idle again."""
    app, settings, take = stream.app(), Settings(), TakeSamples()
    topic = stream.topic()
    group, client = stream.group(topic), stream.client()
    monitoring, begin = Monitoring(app), server_now(stream.session) - timedelta(minutes=9)

    def rounds(count: int) -> None:
        for _ in range(count):
            take(stream.session, settings)
            # Time passes: it is the samples that become older.
            stream.rows("UPDATE ems_sample SET sampled_at = sampled_at - INTERVAL 10 SECOND ORDER BY sampled_at")
            take._round_at = find_round(stream.session)
            take._written = {place: (one, at - timedelta(seconds=10)) for place, (one, at) in take._written.items()}

    rounds(20)
    app.send_many("t", range(100))
    rounds(1)
    claim = stream.take(topic, group, client, batch=100)
    progress.flush(stream.session, flush_of(claim, topic, 100))
    rounds(20)
    count = "SELECT COUNT(*) FROM ems_sample WHERE topic_id = %s AND group_id = %s"
    assert stream.value(count, 0, 0) == 41
    # Each of: the first; with a lag; finished.
    assert stream.value(count, topic.id, group.id) == stream.value(count, topic.id, 0) == 3
    for points in (54, 200):  # a point for each round, and steps without any
        series = monitoring.series("t", "g", since=begin, until=begin + timedelta(minutes=9), points=points)
        stream_wide = monitoring.series(since=begin, until=begin + timedelta(minutes=9), points=points)
        assert len(series) >= 36 and [one.at for one in series] == [one.at for one in stream_wide]
        assert [one.lag for one in series] == [one.lag for one in stream_wide]
        assert [one.lag for one in series if one.lag] == [100]
        assert [one.in_per_s for one in series] == [one.in_per_s for one in stream_wide]
        assert sorted(one.in_per_s for one in series[1:])[-2:] == [0.0, pytest.approx(10, rel=0.5)]
    within = monitoring.series("t", "g", since=begin + timedelta(minutes=7), until=begin + timedelta(minutes=9))
    assert within and {one.lag for one in within} == {0}, "what held before the first moment holds in it"
    latest = monitoring.rates()["t", "g"]
    assert (latest.lag, latest.in_per_s, latest.out_per_s) == (0, 0.0, 0.0)
    # Another leader's round, of which this one does not know: everything is written.
    TakeSamples()(stream.session, settings)
    take(stream.session, settings)
    assert stream.value(count, topic.id, group.id) == 5
    # Nothing new for ten minutes.
    take._written = {place: (one, at - timedelta(minutes=10)) for place, (one, at) in take._written.items()}
    take(stream.session, settings)
    assert stream.value(count, topic.id, group.id) == 6
