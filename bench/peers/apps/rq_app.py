"""RQ: no result is kept, JSON instead of pickle."""

import os
from collections.abc import Sequence

from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer

from bench.peers.apps import tally

queue = Queue("bench", connection=Redis.from_url(os.environ["BENCH_BROKER"]), serializer=JSONSerializer)


def noop(number: int) -> None:
    tally.ran(number)


def send(number: int) -> None:
    queue.enqueue(noop, number, result_ttl=0)


def send_many(numbers: Sequence[int]) -> None:
    queue.enqueue_many([Queue.prepare_data(noop, (number,), result_ttl=0) for number in numbers])
