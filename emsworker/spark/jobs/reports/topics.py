"""Ranking of topics by messages, bytes and errors per span of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from emsworker.spark.jobs.job import Job, JobResult, WrongOption, option
from emsworker.spark.jobs.reading import Reading, ReportScope, count_messages, needs_spark, read_count, read_span
from emsworker.spark.jobs.report import Chart, JobReport, Table
from emsworker.spark.jobs.reports import open_engine
from emsworker.spark.jobs.reports.engine import RANKED, TOPICS


@dataclass(frozen=True, kw_only=True)
class TopicsOptions(Reading):
    """Options of ``ems pipeline topics``."""

    window: float = option(3600.0, help="One ranking for each span of this length.", metavar="SPAN", read=read_span)
    by: str = option("messages", help="What the ranking goes by.", choices=RANKED)
    top: int = option(20, help="How many topics of each window are shown.", metavar="N", read=read_count)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group is not None:
            raise WrongOption("--group", self.group, "a topic is ranked over all its groups; leave it out")


def run(spark: Any, config: TopicsOptions) -> JobResult:
    """Run ``ems pipeline topics``; without a session in this process."""
    scope = ReportScope(config)
    if config.dry_run:
        return JobResult({"window_s": config.window, "by": config.by, "groups": scope.groups()})
    rows = open_engine(spark, scope).topics(config.window, config.by, config.top)
    table = Table.of("topics", f"Topics by {config.by}, windows of {config.window:g} s", TOPICS, rows)
    records = table.records()
    totals: dict[str, int] = {}
    for row in records:
        totals[row["topic"]] = totals.get(row["topic"], 0) + row[config.by]
    summary = {
        "topics": len(totals),
        "windows": len({row["window"] for row in records}),
        **{name: sum(row[name] for row in records) for name in (*RANKED, "dead")},
    }
    first = sorted(totals, key=lambda name: (-totals[name], name))[: config.top]
    chart = Chart(f"{config.by} in all windows", "bar", first, {config.by: [totals[name] for name in first]})
    return JobResult(summary, JobReport("Topics", [table], [chart] if first else []))


JOB = Job("topics", TopicsOptions, run, needs_spark, count_messages)
