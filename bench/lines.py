"""Every line of the table: what is measured, and the raw limit beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench import consume, fairness, latency, publish, raw, read, worker
from bench.stage import Stage

Measure = Callable[[Stage], dict[str, float]]


@dataclass(frozen=True)
class Line:
    """One line.

    Args:
        name: for the command line.
        what: for people.
        measure: returns figures by name.
        limit: the raw limit, with figures of the same names.
        against: what the raw limit is, for people.
        redis: whether EMS is given a Redis.
    """

    name: str
    what: str
    measure: Measure
    limit: Measure
    against: str
    redis: bool = False


_CLIENTS = worker.PROCESSES * worker.THREADS
_DRAIN_NOOP = consume.drain(lambda tasks: tasks.noop, lambda stage: stage.size.drained)
_DRAIN_ROWS = consume.drain(lambda tasks: tasks.insert_row, lambda stage: stage.size.transactions)
_ONE_ROW = "insert + commit, one row"
_MANY = "`executemany`, 500 a commit"
_ONE_TRIP = "an INSERT of one row that commits by itself"

LINES = (
    Line("send", "`send()`, one caller", publish.send(1), raw.insert(1), f"{_ONE_TRIP}, 1 connection"),
    Line("delay", "`delay()`, one caller", publish.delay, raw.insert(1), f"{_ONE_TRIP}, 1 connection"),
    Line(
        "delay-beside-worker",
        "`delay()`, one caller, while a worker runs what it sends",
        publish.delay_beside_worker,
        raw.insert(1),
        f"{_ONE_TRIP}, 1 connection",
    ),
    Line("send-20", "`send()`, 20 threads", publish.send(20), raw.insert(20), f"{_ONE_TRIP}, 20 connections"),
    Line("send-64", "`send()`, 64 threads", publish.send(64), raw.insert(64), f"{_ONE_TRIP}, 64 connections"),
    Line("asend", "`asend()`, 500 coroutines", publish.asend, raw.insert(20), f"{_ONE_TRIP}, 20 connections"),
    Line("send-many", "`send_many()`, 500 a call", publish.send_many, raw.executemany, _MANY),
    Line("delay-many", "`delay_many()`, 500 a call", publish.delay_many, raw.executemany, _MANY),
    Line("drain", "no-op tasks, 2 processes x 4 threads", _DRAIN_NOOP, raw.read, "read bodies, 500 a query"),
    Line("read", "`read_arrow`, four columns", read.arrow, read.driver, "PyMySQL's `SELECT` of them, 10,000 a query"),
    Line(
        "results",
        "tasks that keep their results, 2 x 4 threads",
        consume.drain(lambda tasks: tasks.answer, lambda stage: stage.size.drained),
        _DRAIN_NOOP,
        "no-op tasks without results",
    ),
    Line(
        "retries",
        "tasks that fail once and are retried, 2 x 4 threads",
        consume.drain(lambda tasks: tasks.flaky, lambda stage: stage.size.drained),
        _DRAIN_NOOP,
        "no-op tasks that do not fail",
    ),
    Line(
        "transactional",
        "transactional tasks that insert a row, one commit each, 2 x 4 threads",
        _DRAIN_ROWS,
        raw.insert_and_commit(_CLIENTS),
        f"{_ONE_ROW}, {_CLIENTS} connections",
    ),
    Line(
        "transactional-least",
        "the same",
        _DRAIN_ROWS,
        raw.insert_with_mark(_CLIENTS),
        f"a row, a mark, a fence, and commit, {_CLIENTS} connections",
    ),
    Line(
        "send-latency",
        "`send()`, one caller",
        publish.send_latency,
        raw.insert_latency,
        f"{_ONE_TRIP}, 1 connection",
    ),
    Line("latency", "`delay()` to handler, 500/s", latency.at(500), raw.insert_latency, _ONE_TRIP),
    Line(
        "latency-redis",
        "`delay()` to handler, 500/s, woken by Redis",
        latency.at(500),
        raw.insert_latency,
        _ONE_TRIP,
        redis=True,
    ),
    Line(
        "fairness",
        "`delay()` to handler of a small customer, 20/s, behind 100,000 of a large one",
        fairness.FLOODED,
        fairness.ALONE,
        "the same without the large one",
    ),
)
