"""Pages of a stream with very many topics and groups: each has a bounded size, and reads a bounded number of rows."""

import time
from collections.abc import Iterator

import pytest

from emsworker.beat.samples import TakeSamples
from emsworker.core.config import Settings
from emsworker.local import LocalDatabase
from emsworker.web.cache import SharedCache
from tests.store.test_many_topics import GROUPS, TOPICS, fill
from tests.support.recycling import recycled_database
from tests.support.streams import Stream, open_stream
from tests.web.conftest import Visiting

_MOST_BYTES = 300_000
_MOST_ROWS = 6_000  # beside those for a text, which is compared with every name, and for an id, looked up in each topic


@pytest.fixture(scope="module")
def stream(server: LocalDatabase) -> Iterator[Stream]:
    with recycled_database(server) as url, open_stream(url) as made:
        fill(made, TOPICS)
        TakeSamples()(made.session, Settings())
        yield made


def rows_read(stream: Stream) -> int:
    """The rows that the server has read for anybody; reading this reads some itself."""
    return sum(int(value) for _, value in stream.rows("SHOW GLOBAL STATUS LIKE 'Handler_read%'"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/", "200 of"),
        ("/groups", "200 of"),
        ("/groups?state=no+consumer", "no consumer"),
        ("/groups?state=idle", "first 200"),
        ("/groups?q=many.77/g1", "many.77"),
        ("/groups/many.10/g1", "many.10"),
        ("/topics", "200 of"),
        (f"/topics?q=many.{TOPICS}", f"many.{TOPICS}"),
        ("/topics/many.10", "many.10"),
        ("/messages", "many."),
        ("/messages?topic=many.10", "many.10"),
        ("/running", "Running"),
        ("/retries", "Retries"),
        ("/delayed", "Delayed"),
        ("/dead", "Dead"),
        ("/clients", "Clients"),
        ("/schedules", "Schedules"),
        ("/alarms", "Alarms"),
        ("/trace?id=many.10/0/1", "many.10"),
        ("/trace?id=0000-00000000-00000000-00000000000a", "many.10"),
        ("/go?q=many.10", ""),
        ("/go?q=many.10/g1", ""),
    ],
)
def test_a_page_of_many_groups_is_bounded(stream: Stream, visit: Visiting, path: str, text: str) -> None:
    client = visit("reader")
    before = rows_read(stream)
    own = rows_read(stream) - before
    began = time.perf_counter()
    page = client.get(path)
    seconds = time.perf_counter() - began
    rows = rows_read(stream) - before - 2 * own
    print(f"\n{path:46} {page.status_code} {1000 * seconds:8.0f} ms {rows:9} rows {len(page.text):9} bytes", end=" ")
    assert page.status_code in (200, 303) and len(page.text) < _MOST_BYTES
    assert text in page.text, path
    assert rows <= (_MOST_ROWS + 3 * GROUPS if "q=many" in path or "id=0" in path else _MOST_ROWS), path


def test_a_reading_that_takes_long_is_kept_for_long() -> None:
    cache, reads = SharedCache(), list[int]()

    def read(took_s: float) -> int:
        time.sleep(took_s)
        reads.append(1)
        return len(reads)

    assert [cache.get("slow", 0.0, lambda: read(0.2)) for _ in range(3)] == [1, 1, 1]
    before = len(reads)
    assert cache.get("quick", 0.0, lambda: read(0.0)) == before + 1
    time.sleep(0.05)
    assert cache.get("quick", 0.0, lambda: read(0.0)) == before + 2
