"""Threads that run what blocks for coroutines: as many as were asked for, and what a cancellation and a fork leave."""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable

import pytest

from emsworker.core.process.threads import ThreadPool
from tests.unit.test_forks import in_a_child

_TRACE = contextvars.ContextVar("trace", default="none")


class _Gate:
    """Calls that wait until they are let go, and what has begun and ended."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.go = threading.Event()

    def call(self, number: int) -> Callable[[], int]:
        def run() -> int:
            self.begun.append(number)
            assert self.go.wait(60)
            self.ended.append(number)
            return number

        return run

    async def has_begun(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.begun) < count:
                await asyncio.sleep(0.001)


def test_calls_beyond_the_threads_wait_and_all_see_the_context_of_their_coroutine() -> None:
    async def main(trace: str) -> list[tuple[int, str]]:
        _TRACE.set(trace)
        gate = _Gate()
        tasks = [asyncio.ensure_future(pool.run(gate.call(n))) for n in range(5)]
        await gate.has_begun(2)
        names = pool.run(lambda: (threading.current_thread().name, _TRACE.get()))
        assert len(gate.begun) == 2, "the others wait, and the loop goes on"
        gate.go.set()
        assert await asyncio.gather(*tasks) == [0, 1, 2, 3, 4] == sorted(gate.begun)
        return [await names]

    pool = ThreadPool(2)
    for trace in ("a", "b"):  # a loop after the other
        [(name, seen)] = asyncio.run(main(trace))
        assert name.startswith("ems-async") and seen == trace
    pool.close()
    assert asyncio.run(main("c")), "it starts new threads"
    pool.close()


def test_a_cancelled_call_that_waits_is_dropped_and_one_that_has_begun_ends(caplog: pytest.LogCaptureFixture) -> None:
    gate = _Gate()

    def fails() -> None:
        gate.call(0)()
        raise OSError("the server has gone")

    async def main() -> None:
        begun = asyncio.ensure_future(pool.run(fails, "a send to orders"))
        await gate.has_begun(1)
        waits = asyncio.ensure_future(pool.run(gate.call(1), "a send to orders"))
        await asyncio.sleep(0)
        for task in (begun, waits):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        gate.go.set()

    pool = ThreadPool(1)
    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
        pool.close()  # waits for what has begun
    assert gate.begun == gate.ended == [0]
    assert caplog.messages == ["a send to orders failed after its coroutine was cancelled: the server has gone"]


def test_a_forked_child_has_threads_of_its_own() -> None:
    pool, gate = ThreadPool(1), _Gate()

    async def main() -> int:
        busy = asyncio.ensure_future(pool.run(gate.call(1)))
        await gate.has_begun(1)
        assert await asyncio.to_thread(in_a_child, lambda: asyncio.run(pool.run(lambda: 7)) == 7)
        gate.go.set()
        return await busy

    assert asyncio.run(main()) == 1
    pool.close()
