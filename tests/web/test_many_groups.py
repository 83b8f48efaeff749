"""Pages of a stream with very many topics and groups: each has a bounded size, and reading has a bounded share of time."""

import time
from collections.abc import Iterator

import pytest

from emsworker.local import LocalDatabase
from emsworker.web.cache import SharedCache
from tests.store.test_many_topics import TOPICS, fill
from tests.support.recycling import recycled_database
from tests.support.streams import Stream, open_stream
from tests.web.conftest import Visiting

_MOST_BYTES = 300_000


@pytest.fixture
def stream(server: LocalDatabase) -> Iterator[Stream]:
    with recycled_database(server) as url, open_stream(url) as made:
        fill(made, TOPICS)
        yield made


@pytest.mark.slow
def test_pages_of_many_groups_are_bounded(stream: Stream, visit: Visiting) -> None:
    client = visit("viewer")
    for path, text in (
        ("/", "200 of"),
        ("/groups", "200 of"),
        ("/topics", "200 of"),
        ("/groups?q=many.77/g1", "many.77"),
        (f"/topics?q=many.{TOPICS}", f"many.{TOPICS}"),
    ):
        began = time.perf_counter()
        page = client.get(path)
        print(f"{path:30} {1000 * (time.perf_counter() - began):8.0f} ms {len(page.text):9} bytes")
        assert page.status_code == 200 and len(page.text) < _MOST_BYTES
        assert text in page.text, path


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
