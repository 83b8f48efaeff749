"""Redis dies, forgets, remembers too little, or is slow."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from verification.chaos.arena import Arena


def kill_redis(arena: Arena) -> None:
    assert arena.redis
    with arena.fault("redis"):
        arena.redis.kill()
        arena.goes_on()
        arena.redis.start(60)
    arena.goes_on()


def flush_redis(arena: Arena) -> None:
    for _ in range(4):
        with arena.fault("redis"), client_of(arena) as client:
            client.flushall()
        arena.goes_on(10)


def roll_redis_back(arena: Arena) -> None:
    """As after a start from an old snapshot: every counter is what it was some time ago."""
    with client_of(arena) as client:
        old = {key: client.dump(key) for key in client.scan_iter()}
        arena.goes_on(60)
        with arena.fault("redis"):
            client.flushall()
            for key, value in old.items():
                client.restore(key, 0, value)
    arena.goes_on()


def slow_redis(arena: Arena) -> None:
    with arena.fault("redis"), client_of(arena) as client:
        for _ in range(3):
            client.execute_command("CLIENT", "PAUSE", "700", "ALL")
            time.sleep(1)
    arena.goes_on()


@contextmanager
def client_of(arena: Arena) -> Iterator[Any]:
    """A connection to the arena's Redis."""
    from redis import Redis

    assert arena.redis
    with Redis.from_url(arena.redis.url) as client:
        yield client
