"""Celery's canvas on Redis: a worker of its own runs the tasks; a step is a task of a chain."""

# mypy: allow-untyped-decorators

from __future__ import annotations

import os

from celery import Celery, chain, chord

from bench.flows.apps.answering import answer

app = Celery("bench", broker=os.environ["BENCH_BROKER"], backend=os.environ["BENCH_BROKER"])
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=128)


@app.task
def one(number: int) -> int:
    return number


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


def main() -> None:
    """Answer."""
    answer({"calls": chains, "join": chords})
