"""The project that is measured: it acknowledges late and does next to nothing."""

from __future__ import annotations

import json
import os

from celery import Celery
from kombu.transport import TRANSPORT_ALIASES

from bench.peers.apps import tally

TRANSPORT_ALIASES["bare"] = "bench.celery.bare:Transport"

app = Celery("bench", broker=os.environ["BENCH_BROKER"], backend=os.environ.get("BENCH_BACKEND"))
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result="BENCH_BACKEND" not in os.environ,
    worker_prefetch_multiplier=int(os.environ.get("BENCH_MULTIPLIER", "4")),
    broker_connection_retry_on_startup=True,
    broker_transport_options=json.loads(os.environ.get("BENCH_OPTIONS", "{}")),
)


@app.task
def noop(number: int) -> int:
    """Leave a mark."""
    tally.ran(number)
    return number
