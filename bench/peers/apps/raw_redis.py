"""What Redis and its Python client can do at all: a list, a message a call; consuming moves, decodes and removes it."""

from __future__ import annotations

import json
import os
import signal

import redis

from bench.peers.apps import tally

_redis = redis.Redis.from_url(os.environ["BENCH_BROKER"], decode_responses=True)
_stopping: list[int] = []


def send(number: int) -> None:
    _redis.lpush("raw", json.dumps({"number": number}))


def main() -> None:
    """A worker process."""
    signal.signal(signal.SIGTERM, lambda *_: _stopping.append(1))
    running = f"raw:{os.getpid()}"
    while not _stopping:
        body = _redis.blmove("raw", running, 1, "RIGHT", "LEFT")
        if body is not None:
            tally.ran(json.loads(body)["number"])
            _redis.lrem(running, 1, str(body))


if __name__ == "__main__":
    main()
