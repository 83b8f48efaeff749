"""The capacity model: what a load takes, from the costs that a published result measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median

from bench import report, worker
from bench.report import Figure

LOADS = (10_000, 100_000, 1_000_000)
USED = 0.5  # of what was measured; the rest is for peaks, failovers and retention
_HANDLER_MS = 10


@dataclass(frozen=True)
class Costs:
    """What one message takes of the machine that was measured, with the server, senders and workers on it, in µs.

    Args:
        send: by one of twenty callers, confirmed.
        batch: one of 500 in a call.
        run: of a task that does nothing.
        transaction: of a task that commits with its effect.
    """

    send: float
    batch: float
    run: float
    transaction: float

    @classmethod
    def of(cls, figures: Sequence[Figure]) -> Costs:
        """From the rates of a result's lines."""
        rates = {row.line: median(row.ems) for row in figures if row.unit == "messages/s"}
        return cls(*(1e6 / rates[line] for line in ("send-20", "send-many", "drain", "transactional")))

    def machines(self, per_s: float, *micros: float) -> int:
        """How many such machines a load takes that has each message pay these costs."""
        return ceil(per_s * sum(micros) / 1e6 / USED)


def table(file: Path) -> str:
    """The costs, and what each load takes."""
    result_costs = Costs.of(report.load(file))
    return f"{_costs(result_costs)}\n\n{_loads(result_costs)}"


def _costs(costs: Costs) -> str:
    rows = [
        ("`send()`, 20 callers at once", costs.send),
        ("`send_many()`, 500 a call", costs.batch),
        ("a task that does nothing, claimed, run and recorded", costs.run),
        ("a transactional task with one row", costs.transaction),
    ]
    body = [f"| {what} | {micros:,.1f} | {1e6 / micros:,.0f} |" for what, micros in rows]
    return "\n".join(["| a message | µs of the machine | a second |", "| --- | ---: | ---: |", *body])


def _loads(costs: Costs) -> str:
    head = (
        "| messages/s | servers, sent one by one | servers, sent in batches | servers, transactional tasks "
        f"| worker processes | threads for handlers of {_HANDLER_MS} ms |"
    )
    lines = [head, f"| ---: |{' ---: |' * 5}"]
    for load in LOADS:
        cells = (
            costs.machines(load, costs.send, costs.run),
            costs.machines(load, costs.batch, costs.run),
            costs.machines(load, costs.batch, costs.transaction),
            costs.machines(load, worker.PROCESSES * costs.run),
            ceil(load * _HANDLER_MS / 1000),
        )
        lines.append(f"| {load:,} | {' | '.join(f'{cell:,}' for cell in cells)} |")
    return "\n".join(lines)
