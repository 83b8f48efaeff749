"""Redis in front of the counter: lost, rolled back, away and back again."""

import threading
import time
from typing import Any

import pytest
import redis

from emsworker import Ems
from emsworker.publish.allocators.redis import RedisAllocator
from tests.support import rows
from tests.support.machine import machine_s
from tests.support.streams import Stream, in_threads, stored


def redis_app(stream: Stream, redis_url: str, **settings: Any) -> Ems:
    return stream.app(allocator="redis", redis_url=redis_url, **settings)


def counters(redis_url: str) -> dict[bytes, int]:
    with redis.Redis.from_url(redis_url) as client:
        return {key: int(client.get(key)) for key in client.keys("ems:*:next:*")}  # type: ignore[arg-type,union-attr]


def test_a_missing_counter_is_seeded_from_mysql(stream: Stream, redis_url: str) -> None:
    stream.app().send_many("t", range(5))
    assert redis_app(stream, redis_url).send("t", 5).offset == 6
    assert list(counters(redis_url).values()) == [7]


def test_two_streams_share_one_redis(stream: Stream, redis_url: str) -> None:
    first = redis_app(stream, redis_url)
    first.send_many("t", range(5))
    key = next(iter(counters(redis_url)))
    assert first.stream.stream_id.encode() in key


@pytest.mark.parametrize("accident", ["flushed", "rolled back", "garbage", "wrong type"])
def test_redis_loses_its_mind_mid_send(stream: Stream, redis_url: str, accident: str) -> None:
    app = redis_app(stream, redis_url)
    app.send("t", 0)
    key = next(iter(counters(redis_url)))
    stop = threading.Event()

    def disturb() -> None:
        with redis.Redis.from_url(redis_url) as client:
            while not stop.wait(0.01):
                if accident == "flushed":
                    client.flushall()
                elif accident == "wrong type":
                    client.pipeline().delete(key).lpush(key, "x").execute()  # at once, or a producer comes between
                else:
                    client.set(key, 1 if accident == "rolled back" else "garbage")

    def produce(number: int) -> list[int | None]:
        mine = redis_app(stream, redis_url)
        return [mine.send("t", n).offset for n in range(15)]

    disturbing = threading.Thread(target=disturb)
    disturbing.start()
    try:
        told = [offset for made in in_threads(4, produce) for offset in made]
    finally:
        stop.set()
        disturbing.join()
    assert len(set(told)) == 60
    assert sorted([1, *told]) == stored(stream, "t")[0]  # type: ignore[type-var]


@pytest.mark.parametrize("allocator", ["redis", "mysql"])
@pytest.mark.parametrize("away", [False, True])
def test_no_offset_below_the_log_start(stream: Stream, redis_url: str, allocator: str, away: bool) -> None:
    redis_app(stream, redis_url).send_many("t", range(50))
    topic = stream.topic("t")
    group = stream.group(topic)
    rows.trim(stream.rows, 51)  # retention: everything is consumed and deleted
    rows.set_cursor(stream.rows, 51)
    with redis.Redis.from_url(redis_url) as client:
        client.set(next(iter(counters(redis_url))), 7)  # and Redis comes back with an old snapshot
    app = redis_app(stream, redis_url) if allocator == "redis" else stream.app()
    if away and allocator == "redis":
        allocate = app.stream.producer._allocator
        assert isinstance(allocate, RedisAllocator)
        allocate._stay_away(redis.ConnectionError("away"))
    assert app.send("t", "after").offset == 51
    assert stream.take(topic, group, stream.client()).messages[0].body == "after"


def test_publishing_goes_on_without_redis_and_comes_back(stream: Stream, redis_url: str, redis_server: Any) -> None:
    app = redis_app(stream, redis_url)
    assert app.send("t", 0).offset == 1
    redis_server.kill()
    try:
        began = machine_s()
        assert app.send("t", 1).offset == 2
        assert machine_s() - began < 2
        assert [app.send("t", n).offset for n in range(5)] == [3, 4, 5, 6, 7]
    finally:
        redis_server.start()
    deadline = machine_s() + 10
    while not counters(redis_url):
        assert machine_s() < deadline
        app.send("t", 0)
        time.sleep(0.05)
    sent = stored(stream, "t")[0]
    assert sent == list(range(1, len(sent) + 1))


def test_both_allocators_at_once_on_one_partition(stream: Stream, redis_url: str) -> None:
    def produce(number: int) -> list[int | None]:
        app = redis_app(stream, redis_url) if number % 2 else stream.app()
        return [app.send("t", n).offset for n in range(20)]

    told = [offset for made in in_threads(4, produce) for offset in made]
    assert len(set(told)) == 80
    assert set(told) == set(stored(stream, "t")[0])
