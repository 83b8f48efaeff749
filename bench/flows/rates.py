"""Rates, latencies and costs of the sides, which take turns."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.flows.costs import LOCK_WAITS, LOG, LOG_WRITES, ROWS, Counters, counter_of, difference
from bench.flows.lines import FIRST, LINES, Line
from bench.flows.sides import DBOS, EMS, SIDES, Asked, NotInTime, Side
from bench.load import percentile
from bench.peers.arena import Arena
from bench.stage import Servers
from emsworker.local import ServerMissing


@dataclass
class Found:
    """The figures of one line: of each side, one for each round.

    Attributes:
        rates: steps, or calls, a second.
        costs: what was written for a step.
        late: seconds after which a side had not ended.
        latencies: in milliseconds, of all rounds together.
    """

    rates: dict[str, list[float]] = field(default_factory=dict)
    costs: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    late: dict[str, float] = field(default_factory=dict)
    latencies: dict[str, list[float]] = field(default_factory=dict)


class Contest:
    """The sides on their servers.

    Args:
        within_s: for which a side may take for a line.
    """

    def __init__(self, servers: Servers, folder: Path, within_s: float, *, quick: bool) -> None:
        self._servers, self._within_s, self._quick = servers, within_s, quick
        self._arena = Arena(servers, folder)
        self._stack = ExitStack()
        self._asked: dict[Side, Asked] = {}
        self.found = {line.title: Found() for line in (*LINES, FIRST)}

    def __enter__(self) -> Contest:
        self._stack.enter_context(self._arena)
        for side in SIDES:
            try:
                self._asked[side] = Asked(side, self._servers, self._arena).__enter__()
            except ServerMissing as error:
                print(f"{side.name} is left out: {error}", file=sys.stderr)
        return self

    def __exit__(self, *error: object) -> None:
        with self._stack:
            for asked in self._asked.values():
                self._stack.push(asked)

    def round(self, *, first: bool) -> None:
        """Let every side do every line; after one that warms up."""
        if first:
            self._each([line for line in LINES if not line.once], warms_up=True)
        self._each([line for line in (*LINES, FIRST) if first or not line.once], warms_up=False)

    def _each(self, lines: Sequence[Line], *, warms_up: bool) -> None:
        for line in lines:
            for side in [side for side in self._asked if side.takes(line)]:
                try:
                    self._measure(line, side, warms_up=warms_up)
                except NotInTime as error:
                    print(f"{line.title}: {error}", file=sys.stderr)
                    self.found[line.title].late[side.name] = self._within_s
                    self._restart(side)

    def _measure(self, line: Line, side: Side, *, warms_up: bool) -> None:
        asked, found = self._asked[side], self.found[line.title]
        counters = counter_of(asked, self._servers)
        flows, size = line.amount(quick=self._quick or warms_up)
        before = counters()
        took = asked.ask(line, (flows, size), self._within_s)
        written = difference(before, counters())
        if warms_up:
            return
        if isinstance(took, list):
            found.latencies.setdefault(side.name, []).extend(took)
            return
        found.rates.setdefault(side.name, []).append(flows * size / took)
        found.costs.setdefault(side.name, []).append(_a_step(written, flows * size))

    def _restart(self, side: Side) -> None:
        """Kill a side that is not done, and start it on an empty server."""
        asked = self._asked.pop(side)
        asked.kill()
        self._asked = {one: self._asked[one] for one in self._asked} | {
            side: Asked(side, self._servers, self._arena).__enter__()
        }


def _a_step(written: Counters, steps: int) -> dict[str, float]:
    """Return what was written for each step; the waits for locks are those of all."""
    return {name: value if name == LOCK_WAITS else value / steps for name, value in written.items()}


def measure(rounds: int, within_s: float, *, quick: bool) -> dict[str, Found]:
    """Let the sides take turns, a line after another."""
    with (
        tempfile.TemporaryDirectory(prefix="ems-bench-") as name,
        Servers(Path(name), "mariadb") as servers,
        Contest(servers, Path(name), within_s, quick=quick) as contest,
    ):
        for number in range(rounds):
            contest.round(first=not number)
        return contest.found


# -- tables ------------------------------------------------------------------------------------------------------------


def tables(found: dict[str, Found]) -> str:
    """Rates, latencies and costs."""
    rates = {title: one for title, one in found.items() if one.rates}
    return "\n\n".join((rate_table(rates), latency_table(found[FIRST.title].latencies), cost_table(rates)))


def rate_table(found: dict[str, Found]) -> str:
    """Medians, and EMS divided by each other side: the median of the rounds' ratios."""
    rows = [["steps or calls a second", *(side.name for side in SIDES), *(f"EMS / {side.name}" for side in SIDES[1:])]]
    for title, one in found.items():
        row = [title]
        for side in SIDES:
            late = f"not ended in {one.late[side.name]:g} s" if side.name in one.late else ""
            row.append(f"{median(one.rates[side.name]):,.0f}" if side.name in one.rates else late)
        for side in SIDES[1:]:
            pairs = zip(one.rates.get(EMS.name, ()), one.rates.get(side.name, ()), strict=False)
            ratios = [ours / theirs for ours, theirs in pairs]
            row.append(f"{median(ratios):.1f}" if ratios else "")
        rows.append(row)
    return markdown(rows)


def latency_table(latencies: dict[str, list[float]]) -> str:
    """Start to first step."""
    rows = [["from the start of a flow to its first step", "p50 ms", "p99 ms"]]
    rows += [[name, f"{median(some):.1f}", f"{percentile(some, 0.99):.1f}"] for name, some in latencies.items()]
    return markdown(rows)


def cost_table(found: dict[str, Found]) -> str:
    """What is written for a step, medians of the rounds."""
    rows = [
        [
            "for each step or call",
            "rows written",
            "writes of the log",
            "bytes of it",
            "bytes of DBOS's",
            "waits for a row, in all",
        ]
    ]
    for title, one in found.items():
        ours, theirs = one.costs.get(EMS.name), one.costs.get(DBOS.name)
        row = [title]
        for costs, name, form in (
            (ours, ROWS, ",.1f"),
            (ours, LOG_WRITES, ",.2f"),
            (ours, LOG, ",.0f"),
            (theirs, LOG, ",.0f"),
            (ours, LOCK_WAITS, ",.0f"),
        ):
            row.append(format(median(cost[name] for cost in costs), form) if costs else "")
        rows.append(row)
    return markdown(rows)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table; its first row is the head, its first column text."""
    head, *others = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, f"| --- |{' ---: |' * (len(rows[0]) - 1)}", *others])
