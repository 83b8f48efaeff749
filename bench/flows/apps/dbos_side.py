"""DBOS on PostgreSQL: it runs the workflows in this process."""

# mypy: allow-untyped-decorators

from __future__ import annotations

import asyncio
import os
import time

from dbos import DBOS  # type: ignore[import-not-found,unused-ignore]

from bench.flows.apps.answering import answer, latencies

DBOS(config={"name": "bench", "system_database_url": os.environ["BENCH_BROKER"], "log_level": "ERROR"})


@DBOS.step()
def count(number: int) -> int:
    return number


@DBOS.step()
async def acount(number: int) -> int:
    return number


@DBOS.step()
def now() -> int:
    return time.monotonic_ns()


@DBOS.workflow()
def first() -> int:
    ran_at: int = now()
    return ran_at


@DBOS.workflow()
def steps(size: int) -> int:
    for number in range(size):
        count(number)
    return size


@DBOS.workflow()
async def asteps(size: int) -> int:
    for number in range(size):
        await acount(number)
    return size


@DBOS.workflow()
def child(number: int) -> int:
    return number


@DBOS.workflow()
def join(size: int) -> int:
    return len([handle.get_result() for handle in [DBOS.start_workflow(child, number) for number in range(size)]])


@DBOS.workflow()
def chain(size: int) -> int:
    for number in range(size):
        DBOS.start_workflow(child, number).get_result()
    return size


def each(workflow: object, flows: int, size: int) -> int:
    """Run workflows, started at once."""
    return sum(handle.get_result() for handle in [DBOS.start_workflow(workflow, size) for _ in range(flows)])


def side_by_side(flows: int, size: int) -> int:
    """Run workflows of coroutines, started at once."""

    async def run() -> int:
        handles = [await DBOS.start_workflow_async(asteps, size) for _ in range(flows)]
        return sum([await handle.get_result() for handle in handles])

    return asyncio.run(run())


def main() -> None:
    """Answer."""
    DBOS.launch()
    answer(
        {
            "steps": lambda flows, size: each(steps, flows, size),
            "first": lambda flows, _: latencies(flows, lambda: DBOS.start_workflow(first).get_result()),
            "coroutines": side_by_side,
            "join": lambda flows, size: each(join, flows, size),
            "calls": lambda flows, size: each(chain, flows, size),
        }
    )
    DBOS.destroy()
