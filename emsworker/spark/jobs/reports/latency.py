"""Report of queueing and run time: percentiles per topic, group, task and hour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from emsworker.core.model import TASK_HEADER
from emsworker.spark.jobs.job import Job, JobResult, WrongOption, option
from emsworker.spark.jobs.reading import Datasets, Reading, needs_spark
from emsworker.spark.jobs.report import Chart, JobReport, Table
from emsworker.spark.jobs.reports.outcomes import header, read_outcomes

BY = ("topic", "group", "task", "hour")
_SHARES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
_ACCURACY = 100_000  # percentiles are exact to 1/100,000 of the rows
_MOST_BARS = 20


@dataclass(frozen=True, kw_only=True)
class LatencyOptions(Reading):
    """Options of ``ems pipeline latency``."""

    by: tuple[str, ...] = option(
        (), help="One line for each value of this; may be given several times (topic, group and task).", choices=BY
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.by:
            object.__setattr__(self, "by", BY[:3])
        if wrong := next((name for name in self.by if name not in BY), None):
            raise WrongOption("--by", wrong, f"must be one of {', '.join(BY)}")


def spans(outcomes: Any) -> Any:
    """Return ``queued`` for each message that a group took and ``ran`` for each run with a known time, in milliseconds.

    A message is queued from its birth until a client first took it. The run time of a recorded attempt is what the
    worker measured. For all others it is the time of their claim divided by the messages that it finished: exact for
    slow tasks, which are claimed one by one, a mean for quick ones.
    """
    from pyspark.sql import functions as F

    unknown = F.lit(None).cast("double")
    waited = (F.unix_micros("claimedAt") - F.unix_micros("timestamp")) / 1000.0
    runs = F.when(F.col("tries").isNull(), F.array("shareMs")).otherwise(F.col("ranMs"))
    ran = F.transform(runs, lambda ms: F.struct(unknown.alias("queued"), ms.cast("double").alias("ran")))
    both = F.concat(F.array(F.struct(waited.alias("queued"), unknown.alias("ran"))), F.coalesce(ran, F.array()))
    return outcomes.withColumn("span", F.explode(both)).withColumns(
        {"queued": F.col("span.queued"), "ran": F.col("span.ran")}
    )


def latency(outcomes: Any, by: tuple[str, ...]) -> Any:
    """Aggregate to a row for each value of ``by``: queueing times of ``messages``, run times of ``runs``."""
    from pyspark.sql import functions as F

    figures = []
    for name, count in (("queued", "messages"), ("ran", "runs")):
        figures.append(F.count(name).alias(count))
        for label, share in _SHARES:
            figures.append(F.round(F.percentile_approx(name, share, _ACCURACY), 3).alias(f"{name}_{label}_ms"))
        figures.append(F.round(F.max(name), 3).alias(f"{name}_max_ms"))
    return spans(outcomes).groupBy(*by).agg(*figures).where("messages + runs > 0").orderBy(*by)


def prepare(outcomes: Any) -> Any:
    """Add the columns to group by: ``task`` (NULL if the message does not call a task) and ``hour`` of birth."""
    from pyspark.sql import functions as F

    return outcomes.withColumn("task", header(TASK_HEADER)).withColumn("hour", F.date_trunc("hour", "timestamp"))


def run(spark: Any, config: LatencyOptions) -> JobResult:
    """Run ``ems pipeline latency``."""
    data = Datasets(spark, config)
    if config.dry_run:
        return JobResult({"by": list(config.by), "groups": data.groups()})
    frame = prepare(read_outcomes(data, "rawHeaders"))
    table = Table.of("latency", "Queueing and run time, milliseconds", latency(frame, config.by))
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


JOB = Job("latency", LatencyOptions, run, needs_spark)
