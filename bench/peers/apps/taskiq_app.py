"""Taskiq on a Redis stream with a consumer group: acknowledged after the run."""

import asyncio
import os

from taskiq_redis import RedisStreamBroker

from bench.peers.apps import tally

broker = RedisStreamBroker(os.environ["BENCH_BROKER"])
_loop = asyncio.new_event_loop()


@broker.task
async def noop(number: int) -> None:
    tally.ran(number)


def prepare() -> None:
    """The consumer group exists before anything is sent, or else it would begin after it."""
    _loop.run_until_complete(broker.startup())


def send(number: int) -> None:
    _loop.run_until_complete(noop.kiq(number))


def close() -> None:
    """Close its connections."""
    _loop.run_until_complete(broker.shutdown())
