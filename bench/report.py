"""Figures to a Markdown table and to JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from bench.lines import Line
from bench.stage import Servers, Size


@dataclass(frozen=True)
class Figure:
    """One row of the table: every repeat, and the medians."""

    line: str
    what: str
    unit: str
    against: str
    ems: list[float]
    raw: list[float]

    @property
    def ratio(self) -> float:
        """The median of EMS over the median of the raw limit."""
        return median(self.ems) / median(self.raw)


def figures(line: Line, ems: list[dict[str, float]], raw: list[dict[str, float]]) -> list[Figure]:
    """The figures of a line, from what its repeats returned."""
    return [
        Figure(line.name, line.what, unit, line.against, [run[unit] for run in ems], [run[unit] for run in raw])
        for unit in raw[0]
    ]


def table(rows: Iterable[Figure]) -> str:
    """A Markdown table of medians."""
    head = ["| line | what | EMS | raw limit | raw limit is | EMS / raw |", "| --- | --- | ---: | ---: | --- | ---: |"]
    body = [
        f"| {row.line} | {row.what} | {_number(median(row.ems), row.unit)} | {_number(median(row.raw), row.unit)} "
        f"| {row.against} | {row.ratio:.2f} |"
        for row in rows
    ]
    return "\n".join([*head, *body])


def _number(value: float, unit: str) -> str:
    name, _, measure = unit.rpartition(" ")
    return f"{name} {value:.1f} {measure}" if measure == "ms" else f"{value:,.0f}/s"


def header(servers: Servers) -> dict[str, Any]:
    """What is needed to judge any figure: when, and on what."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "database": f"{servers.database.flavor} {servers.database.version}",
        "redis": servers.redis.version if servers.redis is not None else None,
        "durability": "innodb_flush_log_at_trx_commit=1, no binary log, server and clients on one machine",
    }


def as_json(rows: Iterable[Figure], size: Size) -> dict[str, Any]:
    """The figures of the lines, every repeat."""
    return {"size": asdict(size), "figures": [asdict(row) | {"ratio": round(row.ratio, 3)} for row in rows]}


def about(result: dict[str, Any]) -> str:
    """One sentence about the machine of a result."""
    machine = result["machine"]
    load = ", ".join(f"{value:.1f}" for value in machine["load_average"])
    return (
        f"Measured on {result['at'][:10]}: {machine['processor']}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB, {machine['system']}, Python {machine['python']}, {result['database']}, "
        f"Redis {result['redis']}; load average at the end {load}."
    )


def load(file: Path) -> list[Figure]:
    """The figures of a JSON file."""
    result = json.loads(file.read_text())
    names = [field.name for field in fields(Figure)]
    return [Figure(**{name: figure[name] for name in names}) for figure in result["figures"]]


def machine() -> dict[str, Any]:
    """The machine and the versions that matter."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "pymysql": version("PyMySQL"),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
