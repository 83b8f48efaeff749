"""Report of flows by function, from the topic of their events: how they ended, and how long they took."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from emsworker.spark.jobs.job import Job, JobResult
from emsworker.spark.jobs.reading import Reading, ReportScope, count_messages, needs_spark
from emsworker.spark.jobs.report import Chart, JobReport, Table
from emsworker.spark.jobs.reports import open_engine
from emsworker.spark.jobs.reports.engine import FLOWS

_EVENTS = ("ems.flow-events",)
_MOST_BARS = 20


@dataclass(frozen=True, kw_only=True)
class FlowsOptions(Reading):
    """Options of ``ems pipeline flows``; its topic is always that of the events, over all groups."""

    topic: tuple[str, ...] = field(default=_EVENTS, init=False)
    group: str | None = field(default=None, init=False)


def run(spark: Any, config: FlowsOptions) -> JobResult:
    """Run ``ems pipeline flows``; without a session in this process."""
    scope = ReportScope(config)
    if config.dry_run:
        return JobResult({"topic": list(config.topic), "groups": scope.groups()})
    table = Table.of("flows", "Flows by function, times in milliseconds", FLOWS, open_engine(spark, scope).flows())
    records = table.records()
    counts = ("flows", "done", "failed", "cancelled", "unfinished")
    summary = {"functions": len(records)} | {name: sum(row[name] for row in records) for name in counts}
    bars = records[:_MOST_BARS]
    figures = {name: [row[f"took_{name}_ms"] for row in bars] for name in ("p50", "p95", "p99")}
    charts = [Chart("From start to end, milliseconds", "bar", [row["name"] for row in bars], figures)] if bars else []
    return JobResult(summary, JobReport("Flows", [table], charts))


JOB = Job("flows", FlowsOptions, run, needs_spark, count_messages)
