"""Comparisons with peers: to Markdown and to JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from bench.peers.compare import Comparison, PeersSize

ONE, MANY, CONSUME, P50, P99 = "enqueue/s", "enqueue in batches/s", "consume/s", "p50 ms", "p99 ms"


def table(rows: Sequence[Comparison]) -> str:
    """Two tables of medians: the systems, and what EMS reached beside each in the same run."""
    head = [
        "| system | enqueue/s, one caller | in batches/s | consume/s | p50 ms | p99 ms | a confirmed message | "
        "when a worker dies |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    body = [_line(row.title, row.sides["peer"], f"{row.server}: {row.durability}", row.promise) for row in rows]
    return "\n".join([*head, *_ours(rows), *body, "", *_beside(rows)])


def _ours(rows: Sequence[Comparison]) -> list[str]:
    """EMS, over every run of every comparison."""
    ems, woken = joined(row.sides["ems"] for row in rows), joined(row.sides["ems-redis"] for row in rows)
    promise = "at least once, or exactly one effect in a transactional task"
    late = {name: values for name, values in woken.items() if name in (P50, P99)}  # it sends but two before
    return [
        _line("**EMS**", ems, "synced at every commit", promise),
        _line("EMS, woken by Redis", late, "the same", "the same"),
    ]


def joined(sides: Iterable[dict[str, list[float]]]) -> dict[str, list[float]]:
    """The repeats of several runs of one side as if they were of one."""
    every: dict[str, list[float]] = {}
    for side in sides:
        for name, values in side.items():
            every.setdefault(name, []).extend(values)
    return every


def _line(title: str, figures: dict[str, list[float]], durability: str, promise: str) -> str:
    rates = [_number(figures.get(name), ",.0f") for name in (ONE, MANY, CONSUME)]
    times = [_number(figures.get(name), ".1f") for name in (P50, P99)]
    return f"| {' | '.join([title, *rates, *times, durability, promise])} |"


def _number(values: list[float] | None, form: str) -> str:
    return format(median(values), form) if values else ""


def _beside(rows: Sequence[Comparison]) -> list[str]:
    head = [
        "| line | EMS / peer, consume | EMS / peer, enqueue | peer / EMS woken by Redis, p99 "
        "| bare limit of the peer's server | peer / limit, consume | waiting |",
        "| --- | ---: | ---: | ---: | --- | ---: | ---: |",
    ]
    return [*head, *(_ratios(row) for row in rows)]


def _ratios(row: Comparison) -> str:
    slow, fast = row.median("peer", P99), row.median("ems-redis", P99)
    theirs, bare = row.median("peer", CONSUME), row.median("limit", CONSUME)
    cells = [
        row.line,
        _ratio(row.ratio(CONSUME)),
        _ratio(row.ratio(ONE)),
        _ratio(slow / fast if slow and fast else None),
        f"{row.limit}: {_number(row.sides['limit'].get(ONE), ',.0f')}/s in, {bare or 0:,.0f}/s out",
        _ratio(theirs / bare if theirs and bare else None),
        f"{row.waiting:,}",
    ]
    return f"| {' | '.join(cells)} |"


def _ratio(value: float | None) -> str:
    return f"{value:.2f}" if value is not None else ""


def as_json(rows: Iterable[Comparison], size: PeersSize) -> dict[str, Any]:
    """Every repeat of every side."""
    return {"peers_size": asdict(size), "comparisons": [asdict(row) for row in rows]}


def load(file: Path) -> list[Comparison]:
    """The comparisons of a JSON file."""
    return [Comparison.from_json(found) for found in json.loads(file.read_text())["comparisons"]]
