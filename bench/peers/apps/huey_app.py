"""Huey on Redis, results off, JSON. A message leaves Redis before it runs: at most once."""

import os

from huey import RedisHuey

from bench.peers.apps import tally

huey = RedisHuey("bench", url=os.environ["BENCH_BROKER"], results=False)


@huey.task()
def noop(number: int) -> None:
    tally.ran(number)


def send(number: int) -> None:
    noop(number)
