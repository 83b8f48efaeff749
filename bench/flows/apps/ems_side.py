"""EMS: a worker of its own runs the flows; this program starts them and waits for their ends."""

from __future__ import annotations

import asyncio
import time

from bench.flows.apps.answering import answer, latencies
from emsworker import Ems
from emsworker.flows import AsyncFlow, Flow

_POLL_S = 0.02

app = Ems("bench-flows")


def count(number: int) -> int:
    return number


async def acount(number: int) -> int:
    return number


@app.task
def one(number: int) -> int:
    return number


@app.flow
def steps(flow: Flow, size: int) -> int:
    for number in range(size):
        flow.step(count, number)
    return size


@app.flow
async def asteps(flow: AsyncFlow, size: int) -> int:
    for number in range(size):
        await flow.step(acount, number)
    return size


@app.flow
def first(flow: Flow) -> int:
    return flow.step(time.monotonic_ns)


@app.flow
def sleeper(flow: Flow) -> str:
    flow.sleep("30d")
    return "awake"


@app.flow
def join(flow: Flow, size: int) -> int:
    return len(flow.gather(one.s(number) for number in range(size)))


@app.flow
def chain(flow: Flow, size: int) -> int:
    for number in range(size):
        flow.call(one.s(number))
    return size


def in_turn(flows: int, size: int) -> int:
    """Run flows of steps, started at once."""
    return sum(handle.get() for handle in [steps.start(size) for _ in range(flows)])


def side_by_side(flows: int, size: int) -> int:
    """Run flows of coroutines, started at once."""

    async def run() -> int:
        handles = await asyncio.gather(*(asteps.astart(size) for _ in range(flows)))
        return sum(await asyncio.gather(*(handle.aget() for handle in handles)))

    return asyncio.run(run())


def asleep(flows: int) -> int:
    """Start flows that sleep; return how many there are once they do."""
    handles = [sleeper.start() for _ in range(flows)]
    while any(handle.state != "waiting" for handle in handles):
        time.sleep(_POLL_S)
    return flows


def main() -> None:
    """Answer."""
    answer(
        {
            "steps": in_turn,
            "first": lambda flows, _: latencies(flows, lambda: first.start().get()),
            "sleep": lambda flows, _: asleep(flows),
            "coroutines": side_by_side,
            "join": lambda flows, size: sum(handle.get() for handle in [join.start(size) for _ in range(flows)]),
            "calls": lambda flows, size: sum(handle.get() for handle in [chain.start(size) for _ in range(flows)]),
        }
    )
