"""Report of queueing and run time: percentiles per topic, group, task and hour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from emsworker.spark.jobs.job import Job, JobResult, WrongOption, option
from emsworker.spark.jobs.reading import Reading, ReportScope, count_messages, needs_spark
from emsworker.spark.jobs.report import Chart, JobReport, Table
from emsworker.spark.jobs.reports import open_engine
from emsworker.spark.jobs.reports.engine import BY, latency_columns

_MOST_BARS = 20


@dataclass(frozen=True, kw_only=True)
class LatencyOptions(Reading):
    """Options of ``ems pipeline latency``."""

    by: tuple[str, ...] = option(
        (),
        help="One line for each value of this; may be given several times (topic, group and task).",
        choices=tuple(BY),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.by:
            object.__setattr__(self, "by", tuple(BY)[:3])
        if wrong := next((name for name in self.by if name not in BY), None):
            raise WrongOption("--by", wrong, f"must be one of {', '.join(BY)}")


def run(spark: Any, config: LatencyOptions) -> JobResult:
    """Run ``ems pipeline latency``; without a session in this process."""
    scope = ReportScope(config)
    if config.dry_run:
        return JobResult({"by": list(config.by), "groups": scope.groups()})
    columns, rows = latency_columns(config.by), open_engine(spark, scope).latency(config.by)
    table = Table.of("latency", "Queueing and run time, milliseconds", columns, rows)
    records = table.records()
    summary = {
        "messages": sum(row["messages"] for row in records),
        "runs": sum(row["runs"] for row in records),
        "queued_max_ms": max((row["queued_max_ms"] for row in records if row["messages"]), default=None),
        "ran_max_ms": max((row["ran_max_ms"] for row in records if row["runs"]), default=None),
    }
    return JobResult(summary, JobReport("Latency", [table], _charts(records, config.by)))


def _charts(records: list[dict[str, Any]], by: tuple[str, ...]) -> list[Chart]:
    labels = [" / ".join("-" if row[name] is None else str(row[name]) for name in by) for row in records[:_MOST_BARS]]
    return [
        Chart(
            f"{title}, milliseconds",
            "bar",
            labels,
            {name: [row[f"{prefix}_{name}_ms"] for row in records[:_MOST_BARS]] for name in ("p50", "p95", "p99")},
        )
        for prefix, title in (("queued", "Queueing"), ("ran", "Run time"))
    ]


JOB = Job("latency", LatencyOptions, run, needs_spark, count_messages)
