"""Dramatiq on Redis with its default middleware: acknowledged after the run."""

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.peers.apps import tally

broker = RedisBroker(url=os.environ["BENCH_BROKER"])
dramatiq.set_broker(broker)


@dramatiq.actor
def noop(number: int) -> None:
    tally.ran(number)


def send(number: int) -> None:
    noop.send(number)
