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
STALLS = {"Galera": 7.0, "Group Replication": 23.0}  # seconds, as measured: docs/discussions/reliability.md
_STEP_S = 0.1
_YEARS_BETWEEN = 0.5  # failovers of one server: an assumption


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


@dataclass(frozen=True)
class Failover:
    """What one failover of a server does to the messages of its topics.

    Args:
        late: messages that come in while it lasts, or before the backlog that it leaves is gone.
        over_s: seconds from its beginning until the backlog is gone.
    """

    late: float
    over_s: float


def simulate_failover(per_s: float, most_per_s: float, stall_s: float) -> Failover:
    """Simulate a server that serves nothing for a time, and then as fast as it can until nothing waits.

    Args:
        per_s: messages that come in for it each second; senders wait meanwhile, and lose none.
        most_per_s: messages that it can take and run each second.
        stall_s: seconds for which it serves nothing.
    """
    waiting = late = now_s = 0.0
    while now_s < stall_s or waiting > 0:
        late += per_s * _STEP_S
        served = most_per_s * _STEP_S if now_s >= stall_s else 0.0
        waiting = max(0.0, waiting + per_s * _STEP_S - served)
        now_s = round(now_s + _STEP_S, 6)
    return Failover(late, now_s)


def table(file: Path) -> str:
    """The costs, what each load takes, and what a failover costs there."""
    result_costs = Costs.of(report.load(file))
    return f"{_costs(result_costs)}\n\n{_loads(result_costs)}\n\n{_failovers(result_costs)}"


def _costs(costs: Costs) -> str:
    rows = [
        ("`send()`, 20 callers at once", costs.send),
        ("`send_many()`, 500 a call", costs.batch),
        ("a task that does nothing, claimed, run and recorded", costs.run),
        ("a transactional task with one row", costs.transaction),
    ]
    body = [f"| {what} | {micros:,.1f} | {1e6 / micros:,.0f} |" for what, micros in rows]
    return "\n".join(["| a message | µs of the machine | a second |", "| --- | ---: | ---: |", *body])


def _failovers(costs: Costs) -> str:
    head = "| messages/s, sent in batches | servers | a failover somewhere every | messages of others that wait "
    lines = [head + "".join(f"| late in one, {name} | over after " for name in STALLS) + "|"]
    lines.append(f"| ---: |{' ---: |' * (3 + 2 * len(STALLS))}")
    most_per_s = 1e6 / (costs.batch + costs.run)
    for load in LOADS:
        servers = costs.machines(load, costs.batch, costs.run)
        cells = [f"{load:,}", f"{servers:,}", f"{365 * _YEARS_BETWEEN / servers:,.0f} days", "0"]
        for stall_s in STALLS.values():
            found = simulate_failover(load / servers, most_per_s, stall_s)
            cells += [f"{found.late:,.0f} ({1 / servers:.0%} of the stream)", f"{found.over_s:.0f} s"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


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
