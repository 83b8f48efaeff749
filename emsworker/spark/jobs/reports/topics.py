"""Ranking of topics by messages, bytes and errors per span of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from emsworker.spark.jobs.job import Job, JobResult, WrongOption, option
from emsworker.spark.jobs.reading import Datasets, Reading, needs_spark, read_count, read_span
from emsworker.spark.jobs.report import Chart, JobReport, Table
from emsworker.spark.jobs.reports.outcomes import ATTEMPT_COLUMNS, FAILURES

RANKED = ("messages", "bytes", "errors")


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


def spans(time: str, window_s: float) -> Any:
    """Return the start of the window of a time; windows start at multiples of their length since 1970."""
    from pyspark.sql import functions as F

    return F.window(time, f"{round(window_s * 1_000_000)} microseconds")["start"]


def ranking(messages: Any, attempts: Any, dead: Any, window_s: float) -> Any:
    """Rank the topics in each window with any event.

    A message counts at its birth, an error at the end of the attempt, a dead letter at its death.

    Args:
        messages: ``topic``, ``timestamp``, ``size``.
        attempts: ``topic``, ``endedAt``, ``outcome``.
        dead: ``topic``, ``deadAt``.

    Returns:
        ``window``, ``topic``, ``messages``, ``bytes``, ``errors``, ``dead``, and the rank by each of the first three.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    zero = F.lit(0).cast("bigint")
    parts = (
        (messages, "timestamp", (F.lit(1), F.col("size"), zero, zero)),
        (attempts.where(F.col("outcome").isin(*FAILURES)), "endedAt", (zero, zero, F.lit(1), zero)),
        (dead, "deadAt", (zero, zero, zero, F.lit(1))),
    )
    names = (*RANKED, "dead")
    union: Any = None
    for frame, time, values in parts:
        counted = [value.cast("bigint").alias(name) for name, value in zip(names, values, strict=True)]
        part = frame.select(spans(time, window_s).alias("window"), "topic", *counted)
        union = part if union is None else union.unionByName(part)
    sums = union.groupBy("window", "topic").agg(*(F.sum(name).alias(name) for name in names))
    for name in RANKED:
        order = Window.partitionBy("window").orderBy(F.col(name).desc())
        sums = sums.withColumn(f"by_{name}", F.rank().over(order))
    return sums


def run(spark: Any, config: TopicsOptions) -> JobResult:
    """Run ``ems pipeline topics``."""
    from pyspark.sql import functions as F

    data = Datasets(spark, config)
    if config.dry_run:
        return JobResult({"window_s": config.window, "by": config.by, "groups": data.groups()})
    messages = data.messages("topic timestamp size")
    attempts = config.between(data.log("attempts", ATTEMPT_COLUMNS), "endedAt")
    dead = config.between(data.log("deadletters", "topic deadAt"), "deadAt")
    ranked = ranking(messages, attempts, dead, config.window)
    frame = ranked.where(F.col(f"by_{config.by}") <= config.top).orderBy("window", f"by_{config.by}", "topic")
    table = Table.of("topics", f"Topics by {config.by}, windows of {config.window:g} s", frame)
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


JOB = Job("topics", TopicsOptions, run, needs_spark)
