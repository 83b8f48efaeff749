"""Procrastinate on PostgreSQL: sent with the synchronous connector, run by the asynchronous one, as its guide says."""

import os
from collections.abc import Sequence

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector
from procrastinate.jobs import JobDeferrer

from bench.peers.apps import tally

app = App(connector=PsycopgConnector(conninfo=os.environ["BENCH_BROKER"]))


@app.task(name="noop")
async def noop(number: int) -> None:
    tally.ran(number)


_sender = App(connector=SyncPsycopgConnector(conninfo=os.environ["BENCH_BROKER"]))
_opened: list[JobDeferrer] = []


def _task() -> JobDeferrer:
    if not _opened:
        _sender.open()
        _opened.append(_sender.configure_task("noop"))
    return _opened[0]


def prepare() -> None:
    """Create the tables."""
    _task()
    _sender.schema_manager.apply_schema()


def send(number: int) -> None:
    _task().defer(number=number)


def send_many(numbers: Sequence[int]) -> None:
    _task().batch_defer(*[{"number": number} for number in numbers])


def close() -> None:
    """Close its pool."""
    _sender.close()
