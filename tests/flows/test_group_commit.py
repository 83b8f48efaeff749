"""Writes that share a commit, with a commit that fails or is interrupted."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from emsworker.flows.store.group_commit import GroupCommit


@dataclass(frozen=True)
class Write:
    place: int
    size: int = 1


def test_an_error_of_one_write_is_that_of_no_other() -> None:
    tries: list[list[int]] = []

    def commit(writes: Sequence[Write]) -> list[int]:
        tries.append([one.place for one in writes])
        if any(one.place == 2 for one in writes):
            raise LookupError
        return [10 * one.place for one in writes]

    drains: list[Callable[[], None]] = []
    shared = GroupCommit[Write, int](commit)
    results = [shared.submit(Write(number), drains.append) for number in (3, 2, 1)]
    (drain,) = drains
    drain()
    assert [results[0].result(), results[2].result()] == [30, 10]
    with pytest.raises(LookupError):
        results[1].result()
    assert tries == [[1, 2, 3], [1], [2], [3]]


def test_an_interrupted_thread_leaves_what_waits_to_the_next() -> None:
    interrupts = [KeyboardInterrupt()]

    def commit(writes: Sequence[Write]) -> list[int]:
        if interrupts:
            raise interrupts.pop()
        return [one.place for one in writes]

    drains: list[Callable[[], None]] = []
    shared = GroupCommit[Write, int](commit)
    first = shared.submit(Write(1), drains.append)
    with pytest.raises(KeyboardInterrupt):
        drains.pop()()
    second = shared.submit(Write(2), drains.append)
    drains.pop()()
    assert (first.result(0), second.result(0)) == (1, 2)


def test_threads_that_shared_a_commit_share_the_next_one() -> None:
    """Whoever waited for a turn in which its write is there already would come too late for the next commit."""
    threads, each, commits = 8, 50, 0

    def commit(writes: Sequence[Write]) -> list[int]:
        nonlocal commits
        commits += 1
        time.sleep(0.002)
        return [one.place for one in writes]

    shared = GroupCommit[Write, int](commit)
    with ThreadPoolExecutor(threads) as pool:
        flows = list(pool.map(lambda flow: {shared.settle(Write(flow)) for _ in range(each)}, range(threads)))
    assert flows == [{flow} for flow in range(threads)]
    assert commits < 0.4 * threads * each  # a quarter of them; more than half, if they queue up
