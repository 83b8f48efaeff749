"""Pages of a long stream: the server reads no more for them, however long it is.

``./dev verify --long tests/web/test_scale.py`` builds 10,000,000 messages, and also looks at the clock.
"""

import os
import statistics
import time

import pytest

from tests.store.test_flat_cost import SEQUENCE
from tests.support.machine import machine_s
from tests.support.streams import Stream
from tests.web.conftest import Visiting
from tests.web.test_pages import FOR_READERS, PAGES

LONG = os.environ.get("EMS_TEST_LONG") == "1"
pytestmark = pytest.mark.alone if LONG else pytest.mark.slow
BLOCK = 100_000
BLOCKS = 100 if LONG else 3
MOST_READS = 150_000  # counts stop at 20,000 of a kind in a partition, and a search after 20,000 offsets
MOST_S = 0.2  # the median of a page; of a machine that does nothing else
_SEARCHES = (
    "/messages?topic=orders&where=tag='none'",
    "/messages?topic=orders&where=body.total>10&order=oldest",
    "/messages?topic=orders&from=-50",
)


def _lengthen(stream: Stream) -> None:
    """Make the furnished topic long, in messages, retries, dead letters and delayed messages."""
    topic, group = stream.rows("SELECT g.topic_id, g.id FROM ems_group g WHERE g.name = 'workers'")[0]
    (end,) = stream.rows("SELECT MAX(`offset`) FROM ems_message WHERE topic_id = %s AND `partition` = 2", topic)[0]
    stream.rows("SET SESSION unique_checks = 0")
    for block in range(BLOCKS):
        n = f"(n + {block * BLOCK})"
        stream.rows(
            "INSERT INTO ems_message (topic_id, `partition`, `offset`, uid, headers, body, size, born_at) "
            f"SELECT {topic}, 2, {end} + {n}, UNHEX(LPAD(HEX({n}), 32, '0')), '', '1', 1, NOW(6) FROM {SEQUENCE} ORDER BY n"
        )
    last = end + BLOCK * BLOCKS
    stream.rows(
        "UPDATE ems_partition SET next_offset = %s, high_watermark = %s WHERE topic_id = %s AND `partition` = 2",
        last + 1,
        last + 1,
        topic,
    )
    stream.rows(
        "INSERT INTO ems_retry (group_id, `partition`, `offset`, attempt, due_at) "
        f"SELECT {group}, 2, n + 1000, 1, NOW(6) + INTERVAL n SECOND FROM {SEQUENCE} WHERE n <= 50000"
    )
    stream.rows(
        "INSERT INTO ems_dead (group_id, `partition`, `offset`, uid, headers, body, born_at, producer_id, dead_at, attempts, task, error_type, "
        "reason, error) SELECT %s, 1, n + 1000, UNHEX(LPAD(HEX(n), 32, '0')), '', '1', NOW(6), 'p', NOW(6) - INTERVAL n SECOND, 3, "
        f"IF(n %% 10 = 0, 'pay', 'ship'), IF(n %% 4 = 0, 'KeyError', 'ValueError'), 'no', 'oh no' FROM {SEQUENCE} WHERE n <= 50000",
        group,
    )
    stream.rows(
        "INSERT INTO ems_outbox (topic_id, due_at, uid, headers, body, producer_id, created_at) SELECT "
        f"{topic}, NOW(6) + INTERVAL n MINUTE, UNHEX(LPAD(HEX(n + 900000000), 32, '0')), '', '1', 'p', NOW(6) FROM {SEQUENCE} WHERE n <= 50000"
    )
    stream.rows("ANALYZE TABLE ems_message, ems_retry, ems_dead, ems_outbox")


def test_no_page_reads_more_because_the_stream_is_long(stream: Stream, visit: Visiting) -> None:
    _lengthen(stream)
    names = [str(name) for name, _ in stream.rows("SHOW GLOBAL STATUS LIKE 'Handler_read%%'")]

    def reads() -> int:
        return sum(stream.status(*names).values())

    counted, took_s, machine = dict[str, int](), dict[str, float](), dict[str, float]()
    replay = "/groups/orders/workers/replay?plan=1&everything=1"  # says that it is too long, and is a plan of one's own choice
    for page in (*PAGES, *(page for page in FOR_READERS if page != replay), *_SEARCHES):
        client = visit("reader")  # a new one has nothing cached
        assert client.get("/nothing").status_code == 404  # and is connected
        own = reads()
        own = reads() - own  # of the counting itself
        before = reads()
        assert client.get(page).status_code == 200, page
        counted[page] = reads() - before - own
        if LONG:
            times = [_timed(visit, page) for _ in range(5)]
            took_s[page], machine[page] = (statistics.median(column) for column in zip(*times, strict=True))
    for page, count in counted.items():
        print(f"{page:64} {count:7} reads {took_s.get(page, 0):6.3f} s {machine.get(page, 0):6.3f} s of the machine")
    assert {page: count for page, count in counted.items() if count > MOST_READS} == {}
    assert {page: seconds for page, seconds in machine.items() if seconds > MOST_S} == {}


def _timed(visit: Visiting, page: str) -> tuple[float, float]:
    """Seconds of a page with nothing cached, by the ordinary clock and by the machine's."""
    client = visit("reader")
    client.get("/nothing")
    began, began_s = time.perf_counter(), machine_s()
    client.get(page)
    return time.perf_counter() - began, machine_s() - began_s
