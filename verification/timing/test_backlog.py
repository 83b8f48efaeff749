"""A backlog in one partition: ten times the workers, nothing divided anew, and all of them are busy.

EMS_TEST_LONG=1 runs it with a million messages instead of 50,000.
"""

import os

import pytest

from tests.process.stream import Stream
from tests.support.waiting import until

COUNT = 1_000_000 if os.environ.get("EMS_TEST_LONG") else 50_000
CHUNK = 10_000
APP = "tests.process.apps.backlog:app"
BY_CLIENT = "SELECT client_id, SUM(acked_to + 1 - lo) FROM ems_claim GROUP BY client_id"


@pytest.mark.timeout(300 + COUNT / 500)
def test_ten_times_the_workers_share_a_backlog_of_one_partition(one_stream: Stream) -> None:
    stream = one_stream
    for start in range(0, COUNT, CHUNK):
        stream.app.send_many("backlog", range(start, start + CHUNK))
    first = stream.worker(APP)
    until(lambda: len(stream.rows(BY_CLIENT)) == 1 and stream.rows(BY_CLIENT)[0][1], 20, "the first claims")
    others = stream.worker(APP, processes=3, threads=3)
    clients = {*first.client_ids(), *others.client_ids()}
    assert len(clients) == 10
    assert stream.one("SELECT next_offset FROM ems_cursor") < COUNT * 0.8, "they all come while there is a backlog"
    stream.wait_settled(60 + COUNT / 2000)
    shares = {str(client): int(done) for client, done in stream.rows(BY_CLIENT)}
    assert set(shares) == clients and sum(shares.values()) == COUNT
    assert min(shares.values()) > COUNT / 100, shares
    assert stream.rows("SELECT DISTINCT `partition` FROM ems_claim") == [(0,)]
    ranges = sorted(stream.rows("SELECT lo, hi FROM ems_claim"))
    assert [lo for lo, _ in ranges] == [1, *[hi + 1 for _, hi in ranges[:-1]]], "side by side, none twice"
    assert first.stop() == others.stop() == 0
    assert sum(one["n"] for one in stream.record.events("ran")) == COUNT
