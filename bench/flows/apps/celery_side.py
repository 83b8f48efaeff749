"""Celery's canvas, its results in Redis: a worker of its own runs the tasks; a step is a task of a chain."""

# mypy: allow-untyped-decorators

from __future__ import annotations

import os
import time

from celery import Celery, chain, chord

from bench.flows.apps.answering import answer, latencies

app = Celery("bench", broker=os.environ["BENCH_BROKER"], backend=os.environ["BENCH_BACKEND"])
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_default_queue=os.environ["BENCH_QUEUE"],
    worker_prefetch_multiplier=128,
)


@app.task
def one(number: int) -> int:
    return number


@app.task
def now() -> int:
    return time.monotonic_ns()


@app.task
def total(numbers: list[int]) -> int:
    return len(numbers)


def chains(flows: int, size: int) -> int:
    """Run chains, started at once."""
    started = [chain(*(one.si(number) for number in range(size)))() for _ in range(flows)]
    return sum(result.get(disable_sync_subtasks=False) + 1 for result in started)


def chords(flows: int, size: int) -> int:
    """Run chords, started at once."""
    return sum(
        result.get() for result in [chord(one.s(number) for number in range(size))(total.s()) for _ in range(flows)]
    )


def first() -> int:
    """Run a chain of two tasks; return when the first one ran."""
    last = chain(now.s(), one.s())()
    ran_at: int = last.get(disable_sync_subtasks=False)
    return ran_at


def main() -> None:
    """Answer."""
    answer({"calls": chains, "join": chords, "first": lambda flows, _: latencies(flows, first)})
