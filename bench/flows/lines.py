"""The lines of the benchmark."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """What is measured.

    Args:
        name: of the work in each program.
        flows, size: flows that are started at once, and the steps or calls of each.
        quick: the same, for a look.
        once: it is measured in one round only, because it takes minutes.
    """

    title: str
    name: str
    flows: int
    size: int
    quick: tuple[int, int]
    once: bool = False

    def amount(self, *, quick: bool) -> tuple[int, int]:
        """Flows, and the size of each."""
        return self.quick if quick else (self.flows, self.size)


LINES = (
    Line("one flow of 1,000 steps", "steps", 1, 1000, (1, 100)),
    Line("100 flows of 10 steps, started at once", "steps", 100, 10, (20, 10)),
    Line("the same as coroutines", "coroutines", 100, 10, (20, 10)),
    Line("one flow of 100 calls, one after another", "calls", 1, 100, (1, 10)),
    Line("a join of 10", "join", 1, 10, (1, 10)),
    Line("a join of 1,000", "join", 1, 1000, (1, 100)),
    Line("a join of 100,000", "join", 1, 100_000, (1, 2_000), once=True),
)
FIRST = Line("start to first step", "first", 100, 1, (10, 1))
"""Latencies in milliseconds, and no rate."""
SLEEP = Line("flows that sleep for a month", "sleep", 1, 1, (1, 1))
"""It ends when they sleep."""
