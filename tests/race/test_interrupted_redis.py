"""An exception from outside at every place of an exchange with Redis: nobody gets the answer to another's command."""

from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from emsworker.broker.keys import RedisKeys
from emsworker.broker.results import RedisResults
from emsworker.core.flush import ResultRow
from emsworker.core.model import OnceState
from emsworker.publish import redis_connection
from emsworker.publish.redis_connection import RedisConnection
from tests.support.interruptions import Cut, Timeout

pytestmark = pytest.mark.own_process

FILES = (str(Path(redis.__file__).parent), str(redis_connection.__file__))
LATE_MS = 20  # an answer that has come is found in the pool, one that is on its way is not


def cut_everywhere(url: str, work: Callable[[], object], check: Callable[[int], None]) -> int:
    """Interrupt the work at one place after the other, and check after each while the answer is still on its way."""
    with redis.Redis.from_url(url) as admin:
        for number in range(1000):
            admin.client_pause(LATE_MS)
            try:
                with Cut(number, FILES) as cut:
                    work()
            except Timeout:
                pass
            check(number)
            if not cut.raised:
                return number
    raise AssertionError("it takes more than 1000 places")


def test_a_result_is_that_of_its_own_call(redis_url: str) -> None:
    results = RedisResults(redis_url, "interrupted")
    uids = [bytes([n]) * 16 for n in range(3)]
    for uid in uids:
        results.put(ResultRow(uid, uid.hex().encode(), ttl_s=60))

    def check(number: int) -> None:
        for uid in uids[1:]:
            assert results.find([uid])[uid].body == uid.hex().encode(), number

    assert cut_everywhere(redis_url, lambda: results.find(uids[:1]), check) > 10


def test_a_key_is_begun_by_one(redis_url: str) -> None:
    keys = RedisKeys(redis_url, "interrupted")
    keys.begin(b"warm up", 60, 60)
    done = keys.begin(b"done", 60, 60)
    assert keys.finish(b"done", done.token, 60)

    def check(number: int) -> None:
        assert keys.begin(b"key %d" % number, 60, 60).entry is OnceState.FIRST, number

    assert cut_everywhere(redis_url, lambda: keys.begin(b"done", 60, 60), check) > 10


@pytest.mark.parametrize("way", ["ask", "tell"])
def test_an_allocator_or_a_notifier_gets_its_own_answer(redis_url: str, way: str) -> None:
    connection = RedisConnection(redis_url)

    def check(number: int) -> None:
        assert connection.ask("ECHO", f"own {number}") == b"own %d" % number

    assert cut_everywhere(redis_url, lambda: getattr(connection, way)("ECHO", "foreign"), check) > 5
