"""A Redis that hangs: who sends waits for one time-out and not for one a send, and who reads gets an error of EMS."""

import os
import signal
from collections import Counter
from collections.abc import Iterator

import pytest
import redis

from emsworker.core.errors import StoreUnavailable
from emsworker.local.redis_server import Redis
from emsworker.publish.redis_connection import LeftAlone, RedisConnection
from tests.support.streams import Stream, in_threads


@pytest.fixture
def frozen(redis_url: str, redis_server: Redis) -> Iterator[str]:
    """The URL of a Redis that takes connections and does not answer."""
    assert redis_server.pid is not None
    os.kill(redis_server.pid, signal.SIGSTOP)
    yield redis_url
    os.kill(redis_server.pid, signal.SIGCONT)


def test_a_hanging_redis_costs_one_time_out(stream: Stream, frozen: str) -> None:
    app = stream.app(allocator="redis", redis_url=frozen)
    stream.topic("t")
    sent = in_threads(8, lambda number: [app.send("t", n).offset for n in range(5)])
    assert sorted(offset or 0 for each in sent for offset in each) == [*range(1, 41)]
    connection = RedisConnection(frozen)

    def ask(_: int) -> type[Exception] | None:
        try:
            connection.ask("PING")
        except redis.RedisError as error:
            return type(error)
        return None

    counts = Counter(in_threads(8, ask))
    assert counts == {redis.TimeoutError: 1, LeftAlone: 7}, "each thread has waited for a time-out of its own"


def test_what_redis_keeps_is_unavailable_by_name(stream: Stream, frozen: str) -> None:
    app = stream.app(result_backend="redis", redis_url=frozen)
    task = app.task(name="t", result=True)(print)
    result = app.result(task.delay())
    for read in (lambda: result.get(timeout=30), result.forget, lambda: result.status):
        with pytest.raises(StoreUnavailable, match="Redis, which keeps the results, is unavailable"):
            read()
    with pytest.raises(StoreUnavailable, match="Redis, which keeps the keys"), app.once("key", backend="redis"):
        pass
