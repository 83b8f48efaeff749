"""Awa on PostgreSQL: COPY for batches; a worker process is this module, started as its guide says."""

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

import awa

from bench.peers.apps import tally

_client = awa.Client(os.environ["BENCH_BROKER"])


@dataclass
class Noop:
    number: int


def prepare() -> None:
    """Create the tables, those of its newer storage included, which COPY needs."""
    _client.migrate()
    _client.install_queue_storage()


def send(number: int) -> None:
    _client.insert(Noop(number), queue="bench")


def send_many(numbers: Sequence[int]) -> None:
    _client.enqueue_many_copy([Noop(number) for number in numbers], queue="bench")


async def _work() -> None:
    client = awa.AsyncClient(os.environ["BENCH_BROKER"])

    @client.task(Noop, queue="bench")
    async def noop(job: awa.Job) -> None:
        tally.ran(job.args.number)

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await client.start([("bench", 64)])
    await stop.wait()
    await client.shutdown()


if __name__ == "__main__":
    asyncio.run(_work())
