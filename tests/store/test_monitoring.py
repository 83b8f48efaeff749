"""Counts of what ended lately."""

from emsworker.store.groups import progress
from emsworker.store.inspect import monitoring
from tests.support.streams import Stream, failed, flush_of


def test_attempts_are_counted_by_group_and_time(stream: Stream) -> None:
    topic = stream.topic("t")
    stream.app().send_many("t", list(range(6)))
    groups = [stream.group(topic, name) for name in ("g", "other", "idle")]
    client = stream.client()
    for group, failures in ((groups[0], [failed(1), failed(2)]), (groups[1], [failed(3, attempt=2)])):
        claim = stream.take(topic, group, client)
        progress.flush(stream.session, flush_of(claim, topic, claim.hi, failures=failures))
    ids = [group.id for group in groups]
    stream.rows("UPDATE ems_attempt SET ended_at = NOW(6) - INTERVAL 10 SECOND")
    now = monitoring.get_settled_time(stream.session)
    assert monitoring.count_attempts(stream.session, ids, now - 60_000_000, now) == [(2, 0), (1, 1), (0, 0)]
    assert monitoring.count_attempts(stream.session, ids, now - 5_000_000, now) == [(0, 0)] * 3
    assert monitoring.count_attempts(stream.session, [], 0, now) == []


def test_counting_reads_a_piece_of_an_index(stream: Stream) -> None:
    numbers = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 900) SELECT"
    stream.rows(
        "INSERT INTO ems_attempt (group_id, `partition`, `offset`, ended_at, attempt, outcome) "
        f"{numbers} n MOD 3, 0, n, NOW(6) - INTERVAL n SECOND, 1, 'failed' FROM n"
    )
    stream.rows("ANALYZE TABLE ems_attempt")
    now = monitoring.get_settled_time(stream.session)
    args = {"group_id": 1, "from_us": now - 20_000_000, "to_us": now}
    (row,) = stream.explain(monitoring._SQL.count_attempts, args)
    assert (row["key"], row["type"]) == ("recent", "range")
