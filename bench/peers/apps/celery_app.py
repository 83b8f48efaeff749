"""Celery: acknowledged after the run, publishing confirmed, results off, many short tasks fetched ahead."""

import os

from celery import Celery

from bench.peers.apps import tally

app = Celery("bench", broker=os.environ["BENCH_BROKER"])
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    task_default_queue=os.environ["BENCH_QUEUE"],
    worker_prefetch_multiplier=128,
    worker_disable_rate_limits=True,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True} if os.environ["BENCH_BROKER"].startswith("amqp") else {},
)


@app.task
def noop(number: int) -> None:
    tally.ran(number)


def send(number: int) -> None:
    noop.delay(number)
